"""``python -m jetflow_train``."""

from jetflow_train.cli import main

main()

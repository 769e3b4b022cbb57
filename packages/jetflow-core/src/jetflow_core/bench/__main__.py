"""``python -m jetflow_core.bench decode ...``: the benchmarks without an installed ``jetflow``."""

from __future__ import annotations

from jetflow_core.bench.app import main

if __name__ == "__main__":
    main()

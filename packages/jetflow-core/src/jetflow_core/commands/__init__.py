"""The commands of this package, one module each. They import torch only when they run."""

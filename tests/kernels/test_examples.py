"""The examples of the docstrings and of the README run and say what they claim."""

import doctest
import re
from pathlib import Path

import torch
from jetflow_kernels import availability, reference
from jetflow_kernels.rows import reference as rows_reference

README = Path(__file__).parents[2] / "packages" / "jetflow-kernels" / "README.md"


def test_docstring_examples() -> None:
    for module in (reference, availability, rows_reference):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def test_readme_example() -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code.group(1), names)
    out = names["out"]
    assert isinstance(out, torch.Tensor)
    assert out.shape == (3, 4, 64)
    assert torch.isfinite(out).all()

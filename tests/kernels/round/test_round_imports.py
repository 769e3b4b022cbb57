"""The ops can be imported, and the references used, where triton is not installed."""

import ast
from pathlib import Path

import jetflow_kernels.round

FOLDER = Path(jetflow_kernels.round.__file__).parent


def test_only_kernel_files_need_triton_to_be_imported() -> None:
    looked_at = 0
    for file in FOLDER.glob("*.py"):
        if file.stem.endswith("_kernel"):
            continue
        looked_at += 1
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            names = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                names = [statement.module or ""]
            for name in names:
                assert not name.startswith("triton"), (file.name, name)
                assert not name.endswith("_kernel"), (file.name, name)
    assert looked_at > 5

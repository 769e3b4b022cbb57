"""The documentation says what the code does."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from jetflow_core.request_fields import OPENAI_FIELDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs_tables() -> ModuleType:
    """The script that makes the tables."""
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / ".ci" / "docs_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_equal_the_code(docs_tables: ModuleType) -> None:
    assert docs_tables.outdated() == [], "run: uv run python .ci/docs_tables.py"


def test_every_request_field_stands_in_the_table_with_its_answer() -> None:
    page = (ROOT / "docs" / "request-options.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {name: rule.kind for name, rule in OPENAI_FIELDS.items()}


def test_an_outdated_table_is_noticed(
    docs_tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_tables, "request_table", lambda: "| another |\n")
    assert docs_tables.outdated() == ["docs/request-options.md"]


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    pages = {f.relative_to(ROOT / "docs").as_posix() for f in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r'= "([\w/-]+\.md)"', config)) == pages


def test_readme_commands_are_what_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for beginning in re.findall(r'readme_command "(.+)"', script):
        assert len(re.findall(rf"^{beginning}( .*)?$", readme, re.MULTILINE)) == 1, beginning


def _python_lines(page: str) -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return re.sub(r"  #.*", "", found[1])


def test_the_front_pages_show_the_same_lines_of_python() -> None:
    for page in ("docs/index.md", "packages/jetflow-core/README.md"):
        assert _python_lines(page) == _python_lines("README.md")


@pytest.mark.slow
def test_the_lines_of_python_write_poems(capsys: pytest.CaptureFixture[str]) -> None:
    # In this process: another one would import torch and transformers anew.
    exec(compile(_python_lines("README.md"), "README.md", "exec"), {"__name__": "__main__"})
    assert len(capsys.readouterr().out.split()) > 5

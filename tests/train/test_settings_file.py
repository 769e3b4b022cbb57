"""Options in a file: what is written reads back, and what is wrong in it is named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from jetflow_core.cli import run
from jetflow_train.toml import to_toml


@examples(max_examples=40)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
        st.one_of(
            st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.booleans(),
            st.lists(st.integers(0, 9)),
        ),
    )
)
def test_what_is_written_as_toml_reads_back(values: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(values)) == values


def test_settings_hold_nothing_else() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        to_toml({"a": None})


def test_regeneration_reads_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data.toml"
    file.write_text('prompts = ["nix.jsonl"]\nout = "o"\ntemperatures = [0.5, 1]\nrows = 4\n')
    assert run(["data", "regenerate", "--target", "none", "--config", str(file)]) == 2
    assert "nix.jsonl" in capsys.readouterr().err
    file.write_text('prompts = ["nix.jsonl"]\nout = "o"\ntemprature = 1\n')
    assert run(["data", "regenerate", "--config", str(file)]) == 2
    assert "unknown key 'temprature'; did you mean 'temperatures'?" in capsys.readouterr().err

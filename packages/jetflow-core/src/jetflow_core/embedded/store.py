"""A cache of folders that are either complete or not there.

A folder is written under a temporary name beside its final place and renamed when done. Processes
may race for the same folder: each writes its own, the first rename wins, the others drop theirs.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jetflow_core.embedded.locate import EmbeddedTargetError

MANIFEST = "jetflow_files.json"
_PARTIAL = ".partial-"
_STALE_SECONDS = 24 * 3600.0


def default_cache_dir() -> Path:
    """Returns `$XDG_CACHE_HOME/jetflow`, or `~/.cache/jetflow` where that variable is not set."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification asks for relative paths to be ignored.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "jetflow"


def is_complete(folder: Path) -> bool:
    """Returns whether the folder holds every file of its manifest, each in its recorded size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool(sizes) and all(
            (folder / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def ensure_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Returns `folder`, complete: as it is, or filled by `write` and put in place atomically.

    Args:
        folder: The final place. A damaged folder there is replaced.
        write: Fills the empty folder that it is given. It may raise; nothing stays behind then.

    Raises:
        EmbeddedTargetError: The place cannot be written.
    """
    if is_complete(folder):
        return folder
    partial = folder.with_name(f"{_PARTIAL}{uuid.uuid4().hex}")
    try:
        partial.mkdir(parents=True)
        _remove_stale(folder.parent)
        write(partial)
        _write_manifest(partial)
        _publish(partial, folder)
    except OSError as error:
        raise EmbeddedTargetError(
            f"cannot write the cache folder {folder.parent} ({error}); "
            f"free some space, set XDG_CACHE_HOME, or name another folder"
        ) from error
    finally:
        _remove(partial)
    return folder


def _write_manifest(partial: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
    (partial / MANIFEST).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")


def _publish(partial: Path, folder: Path) -> None:
    # A second attempt follows the removal of a damaged folder, a third one a lost race for that.
    for attempt in range(3):
        try:
            partial.rename(folder)
            return
        except OSError:
            if is_complete(folder):
                return
            if attempt == 2:
                raise
        aside = folder.with_name(f"{_PARTIAL}{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):
            folder.rename(aside)
        _remove(aside)


def _remove_stale(root: Path) -> None:
    """Deletes what killed processes left, old enough that nobody is still writing it."""
    limit = time.time() - _STALE_SECONDS
    for entry in root.glob(f"{_PARTIAL}*"):
        with suppress(OSError):
            if entry.stat().st_mtime < limit:
                _remove(entry)


def _remove(path: Path) -> None:
    # Clearing up must not hide why it was needed: what cannot be removed stays as stale.
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()

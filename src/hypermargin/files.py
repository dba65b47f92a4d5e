"""Files that are whole or not there: written under a temporary name, synced, then moved into place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = errno.ENOSPC, errno.EFBIG, errno.EDQUOT  # of which the system does not say for which file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; moved onto `path` at the end, removed after an error."""
    # The process's number keeps two writers of one file apart; the ending stays, since some writers add their own.
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        if error.errno not in FULL or error.filename:
            raise
        kept = " What was there before is kept." if path.exists() else ""
        raise OSError(error.errno, f"{error.strerror}: {path} could not be written.{kept}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write the whole text or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:  # Windows and some file systems cannot sync a folder
        if not path.is_dir():
            raise


def free_path(name: str, path: str | os.PathLike[str], endings: tuple[str, ...], replace: bool) -> Path:
    """Check a path to write to before any work is done: its ending, its folder, and that nothing is there yet."""
    found = Path(path)
    if found.suffix not in endings:
        raise ValueError(f"{name} must end in {' or '.join(endings)}; got {found}.")
    if found.is_dir():
        raise ValueError(f"{name}: {found} is a folder. Choose another name.")
    if found.exists() and not replace:
        raise ValueError(f"{name}: {found} is there already. Choose another name, or replace=True (--force).")
    if not found.parent.is_dir():
        raise ValueError(f"{name}: there is no folder {found.parent}. Make it first.")
    return found

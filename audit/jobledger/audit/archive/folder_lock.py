"""The lock on an archive's folder, which keeps archive runs out while its exports are changed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from jobledger.audit.errors import ArchiveRefusedError
from jobledger.ledger.files import open_folder
from jobledger.ledger.model.errors import NotFoundError


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None, None, None]:
    """Keep archive runs, and others that change exports, out of the folder. Raises: ArchiveRefusedError, NotFoundError."""
    if not folder.is_dir():
        raise NotFoundError(f"there is no archive folder {folder}")
    descriptor = open_folder(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ArchiveRefusedError(
            f"another run is at work in {folder}: run this again when it has ended"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise ArchiveRefusedError(
            f"{folder} cannot be locked ({error.strerror}): change exports where the archive's file system has locks"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)

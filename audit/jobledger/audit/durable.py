"""Files that must outlive a power cut: what a process wrote is on the disk before it goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


def sync_file(file: IO[bytes]) -> None:
    """Return when what was written to a file is on the disk. Raises: OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Return when what was put into a folder, or renamed in it, is on the disk. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

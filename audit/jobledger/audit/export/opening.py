"""Opening what is in the folder of an export, which anybody may have made."""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: Path, *, bytes_max: int | None = None, buffer_bytes: int = 128 << 10) -> BinaryIO:
    """Open a file to be read, never a pipe or a device, which may have no end, or none before somebody writes.

    Raises: OSError, also for a file that is larger than `bytes_max`.
    """
    opener = functools.partial(_opened, bytes_max=bytes_max)
    return open(path, "rb", buffering=buffer_bytes, opener=opener)


def _opened(path: str, flags: int, *, bytes_max: int | None) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe's other end may never come
    found = os.fstat(descriptor)
    error: OSError | None = None
    if stat.S_ISDIR(found.st_mode):
        error = OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    elif not stat.S_ISREG(found.st_mode):
        error = OSError(errno.EINVAL, "it is no file with an end")
    elif bytes_max is not None and found.st_size > bytes_max:
        error = OSError(
            errno.EFBIG, f"it has {found.st_size:,} bytes, more than the {bytes_max:,} there can be"
        )
    if error is not None:
        os.close(descriptor)
        raise error
    return descriptor

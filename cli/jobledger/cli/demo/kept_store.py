"""The store of a demo's server that is kept with `--keep`, for `jobledger up` to open again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from jobledger.cli.errors import UsageError
from jobledger.ledger.files import make_folder, open_to_lock, write_whole

_MARK: Final = "made-by-jobledger-demo"
_LOCK: Final = "embedded.lock"


def refuse_unfit(folder: Path) -> None:
    """Refuse a folder with files that no earlier demo left there, or whose server runs. Raises: UsageError."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / _MARK).exists():
        raise UsageError(f"--keep {folder} holds something that no demo left there: name another folder")
    if (folder / _LOCK).exists():
        lock = open_to_lock(folder / _LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a server works in --keep {folder}: stop it first") from None
        finally:
            os.close(lock)


def keep(store: Path, folder: Path) -> None:
    """Move a store whose server has stopped into `folder`, replacing an earlier demo's. Raises: UsageError, OSError."""
    refuse_unfit(folder)
    write_whole(store / _MARK, b"")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    make_folder(folder.parent)
    shutil.move(store, folder)


def command_for(folder: Path, app: str) -> str:
    """Return the command that opens a kept store in a browser, with a worker of `app`, as typed in this folder."""
    found = shutil.which("jobledger")
    here = Path(sys.argv[0])
    is_it = found is not None and here.exists() and Path(found).samefile(here)
    program = "jobledger" if is_it or not here.exists() else os.path.relpath(here)
    return f"{program} up --dir {os.path.relpath(folder)} --app {app} --port 0"

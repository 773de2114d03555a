"""The child *past*: makes the rows of past moments, one at a time, and keeps the files of the last few.

They lie beside the projection in `<path>.past/<random>/`, which is removed at the end. A lock on `<random>.lock` shows
that its child lives: a new child removes the folders that killed children left, on any machine or container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final

from anyio.abc import ObjectReceiveStream

from jobledger.gateway.process.messages import GiveBack, Lent, NotLent, Setup, ToChild, ToGateway, Want
from jobledger.ledger import Ledger
from jobledger.ledger.files import make_folder, open_to_lock
from jobledger.ledger.model.errors import LedgerError, UnreachableError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.projections import ProjectionError, Snapshots, refuse_archived
from jobledger.projections.past_files import PastFiles
from jobledger.workers.processes.messages import Ready

KEPT_MAX: Final = 4
_LOCK: Final = ".lock"


def folder_of(projection: Path) -> Path:
    """Return where the folders of children lie."""
    return projection.with_name(f"{projection.name}.past")


async def lend(ledger: Ledger, setup: Setup, line: ToGateway, requests: ObjectReceiveStream[ToChild]) -> None:
    """Make and lend wanted files until cancelled."""
    path = Path(setup.projection)
    with _folder(folder_of(path)) as folder:
        past = PastFiles(
            ledger.log, path, folder, snapshots=Snapshots(path), kept_max=KEPT_MAX, clock=ledger.clock
        )
        line.send(Ready())
        async for request in requests:
            if isinstance(request, GiveBack):
                past.give_back(Path(request.path))
            elif isinstance(request, Want):
                line.send(await _lent(ledger, past, request))


async def _lent(ledger: Ledger, past: PastFiles, wanted: Want) -> Lent | NotLent:
    sequence = wanted.stream_sequence
    try:
        await refuse_archived(ledger.log, sequence)
        return Lent(stream_sequence=sequence, path=str(await past.lend(sequence)))
    except (UnreachableError, ConnectionLostError) as error:
        sentence = str(error) or "the connection to the server was lost"
        return NotLent(stream_sequence=sequence, sentence=sentence, reason="server")
    except (LedgerError, ProjectionError, OSError) as error:
        return NotLent(stream_sequence=sequence, sentence=str(error), reason="rows")


@contextlib.contextmanager
def _folder(parent: Path) -> Generator[Path, None, None]:
    """Make a folder for this child alone; at the end remove it, and those of killed children."""
    make_folder(parent)
    folder = parent / secrets.token_hex(8)
    lock = folder.with_suffix(_LOCK)
    descriptor = open_to_lock(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_those_of_the_dead(parent, own=lock)
        make_folder(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # other children have folders in it
            parent.rmdir()


def remove_those_of_the_dead(parent: Path, own: Path | None = None) -> None:
    """Remove the folders of killed children."""
    for lock in parent.glob(f"*{_LOCK}"):
        if lock == own:
            continue
        with contextlib.suppress(OSError):
            descriptor = open_to_lock(lock)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else its child lives
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

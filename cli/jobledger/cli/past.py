"""`--at` and `--sequence`: the state as of a past moment, and the present where neither was given."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from jobledger.cli.errors import JobNotYetError, UsageError
from jobledger.cli.events.events import parse_time
from jobledger.cli.output import Output
from jobledger.cli.session import caught_up, projection_path
from jobledger.ledger import Ledger
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.times import time_text
from jobledger.projections import Moment, Store, as_of, moment_of, refuse_archived


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the options said; one of the two is given."""

    at: datetime | None
    stream_sequence: int | None

    @property
    def words(self) -> str:
        """The option again, as it is given on a command line."""
        return f"--sequence {self.stream_sequence}" if self.at is None else f"--at {time_text(self.at)}"

    async def moment(self, log: Log, clock: Clock) -> Moment:
        """Return the moment in this ledger. Raises: MomentAheadError, MomentArchivedError, UnreachableError."""
        found = await moment_of(log, at=self.at, stream_sequence=self.stream_sequence, clock=clock)
        await refuse_archived(log, found.stream_sequence)
        return found


def asked(at: str | None, sequence: int | None) -> Asked | None:
    """Read both options; None when neither was given. Raises: UsageError."""
    if at is not None and sequence is not None:
        raise UsageError("--at and --sequence both name a moment: give one of them")
    if at is None and sequence is None:
        return None
    return Asked(at=parse_time("--at", at) if at is not None else None, stream_sequence=sequence)


def said(then: Moment) -> str:
    """Return a moment in words."""
    place = f"stream sequence {then.stream_sequence:,}" if then.stream_sequence else "before the first event"
    return f"as of {place}" if then.at is None else f"as of {time_text(then.at)} ({place})"


@contextlib.asynccontextmanager
async def viewed(
    ledger: Ledger, chosen: Path | None, past: Asked | None, output: Output
) -> AsyncGenerator[tuple[Store, datetime], None]:
    """Open the rows as of the past moment, else the projection brought up to date; with the time that is now there."""
    path = await projection_path(ledger, chosen)
    if past is None:
        await caught_up(ledger, path, output)
        with Store.open(path) as store:
            _tell_beginning(store, output)
            yield store, ledger.clock.now()
        return
    then = await past.moment(ledger.log, ledger.clock)
    output.note(said(then))
    with contextlib.ExitStack() as shown:
        progress = shown.enter_context(output.progress("reading the ledger"))
        async with as_of(
            ledger.log, path, then.stream_sequence, progress=progress, clock=ledger.clock
        ) as store:
            shown.close()
            _tell_beginning(store, output)
            yield store, then.at or ledger.clock.now()


def rows_begin(store: Store) -> dict[str, int]:
    """Return what a row of --json also says where the rows do not begin with the ledger: `rows_begin_at`."""
    begins_at = store.position().begins_at
    return {} if begins_at == 1 else {"rows_begin_at": begins_at}


def _tell_beginning(store: Store, output: Output) -> None:
    for begins_at in rows_begin(store).values():
        output.note(
            f"rows begin at stream sequence {begins_at}: what was before is in the archive, and "
            "`jobledger projection rebuild --archive DIR` puts it into them"
        )


def events_until(history: Sequence[StoredEvent], then: Moment) -> list[StoredEvent]:
    """Return a job's events up to a moment.

    Raises: JobNotYetError when it had none.
    """
    found = [stored for stored in history if stored.stream_sequence <= then.stream_sequence]
    if not found:
        first = history[0]
        raise JobNotYetError(
            f"job {first.event.job} was not there yet {said(then)}: it came at stream sequence "
            f"{first.stream_sequence}, {time_text(first.stored_at)}"
        )
    return found

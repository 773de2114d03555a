"""A keeper: it looks now and then how full the ledger is, and has its oldest events moved into an archive.

A few times a day it also has the oldest exports of the archive removed, and large values deleted that no event names any
more: see `audit.archive.forgetter` and `audit.archive.unnamed`.

One process of an environment is the keeper, by a lease of that name; the others wait for it. The work itself is done where
it disturbs nobody, mostly in a process of its own. Two at once would do no harm: an archive run is refused when another
was faster. What is kept and moved is a setting of the ledger. Source: ADR 062.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from jobledger.admin.amounts import duration, size
from jobledger.admin.archive_place import is_marked, require_place
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.forgetter import Forgetter
from jobledger.audit.archive.mirror import local_folder
from jobledger.audit.archive.plan import bound, stored_before
from jobledger.audit.archive.slices import Slice, find_slice
from jobledger.audit.archive.unnamed import clear_values
from jobledger.audit.errors import ArchiveAbsentError
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.archive_record import newest_archived
from jobledger.ledger.model.errors import CorruptLedgerError, LedgerError
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.log import Head
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.retention import MAIN, RETENTION, Retention
from jobledger.ledger.model.times import as_utc
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.leases import KEEPER, LeaseLostError, WorkerInfo, keeper_among
from jobledger.ledger.nats.stored_values import StoredValues
from jobledger.projections import ProjectionError, counting

logger = logging.getLogger("jobledger.keeper")

NO_PLACE: Final = "no place is set: say where the archive is to be with `jobledger retention set --to DIR`"
BY: Final = "keeper"  #: the author of events that record a move
_RENEWALS_PER_LEASE: Final = 3
_FAREWELL_S: Final = 2.0
_TROUBLE_MAX: Final = 500
_PAUSE_S_MIN: Final = 0.2
_AGAIN_S: Final = 60.0
#: Between two looks the setting and the ledger's size are read at this interval: an idle ledger may fill suddenly.
_GLANCE_S: Final = 10.0
#: A run that takes longer is ended, since its process may be frozen; the next one goes on where it was.
_RUN_S_MAX: Final = 4 * 3600.0
_PLACE_S: Final = 30.0  #: how long the folder of the archive may take to be looked at
_RUNS_MAX: Final = 20  #: runs one after the other before the next pause
#: How often large values are looked at, which reads the whole ledger; and how soon again after a failure.
_CLEAR_EVERY_S: Final = 6 * 3600.0
_CLEAR_AGAIN_S: Final = 3600.0
#: How long such a look may take: no events are moved meanwhile.
_CLEAR_S_MAX: Final = 900.0
#: Events are moved for their age once the oldest is this much too old: not a few events every few minutes.
_LATE_SHARE: Final = 0.05


async def retention_of(ledger: Ledger, default_to: str = "") -> Retention:
    """Return how long the ledger keeps its events; `default_to`: where they are moved, if nobody said.

    Raises: UnreachableError, UnknownEventError.
    """
    state = (await look(ledger.log, RETENTION, MAIN)).state
    terms = Retention() if state is None else state.terms
    return terms if terms.to else msgspec.structs.replace(terms, to=default_to)


async def _is_due(ledger: Ledger, terms: Retention) -> bool:
    """Return whether events should be moved now, or a run that was cut off is to be finished.

    Raises: CorruptLedgerError, UnreachableError.
    """
    head = await ledger.log.head()
    if _wanted(head, terms):
        return True
    newest = await newest_archived(ledger.log)
    if newest is not None and newest.through_sequence >= head.first_sequence:
        return True
    return await _is_old(ledger, head, terms)


def _wanted(head: Head, terms: Retention) -> int:
    """Return how many bytes should be moved because the ledger is fuller than it should be."""
    if head.bytes_max is None or head.stored_bytes <= terms.start * head.bytes_max:
        return 0
    return round(head.stored_bytes - terms.aim * head.bytes_max)


async def _is_old(ledger: Ledger, head: Head, terms: Retention) -> bool:
    if terms.max_age_s is None or head.last_sequence < head.first_sequence:
        return False
    first = await ledger.log.get(head.first_sequence)
    latest = terms.max_age_s + max(terms.every_s, _LATE_SHARE * terms.max_age_s)
    return first is not None and as_utc(first.stored_at) < _ago(ledger, latest)


def _ago(ledger: Ledger, seconds: float) -> datetime:
    return ledger.clock.now() - timedelta(seconds=seconds)


async def move(ledger: Ledger, projection: Path, terms: Retention, *, makes: bool = False) -> MoveOutcome:
    """Move a slice of the events that should be and may be moved: see `slices`. Nothing is lost if this is interrupted.

    `projection`: whose counters are recorded. `makes`: whether a missing folder is made.
    """
    if not terms.to:  # the place was removed after somebody saw it
        return MoveOutcome(trouble=NO_PLACE)
    if not await _is_due(ledger, terms):
        return MoveOutcome(first_sequence=(await ledger.log.head()).first_sequence)
    try:
        return await _move(ledger, projection, terms, makes=makes)
    except (LedgerError, ProjectionError) as error:
        if isinstance(error, CorruptLedgerError):
            logger.debug("nothing was moved", exc_info=True)
        unwritten = isinstance(error, ArchiveAbsentError)
        return MoveOutcome(is_due=True, trouble=str(error), unwritten=unwritten)
    except OSError as error:
        where = error.filename or terms.to
        trouble = f"the archive cannot be written, {where}: {error.strerror or error}"
        return MoveOutcome(is_due=True, trouble=trouble, unwritten=True)


async def move_once(ledger: Ledger, projection: Path, default_to: str = "") -> MoveOutcome:
    """Move events by the setting; to `default_to` (made if missing) if it names no place. Raises: UnreachableError."""
    terms = await retention_of(ledger, default_to)
    return await move(ledger, projection, terms, makes=terms.to == default_to)


async def clear_once(ledger: Ledger, default_to: str = "") -> MoveOutcome:
    """Forget exports that are old enough, then delete what no event names any more of the large values.

    See `Forgetter` and `clear_values`. `default_to`: as in `move_once`.

    Raises: UnreachableError, where the setting cannot be read.
    """
    terms = await retention_of(ledger, default_to)
    if not terms.to:
        return MoveOutcome(trouble=NO_PLACE)
    forgot = await _forget(ledger, terms)
    cleared = await _clear(ledger, terms)
    return msgspec.structs.replace(
        cleared,
        forgotten=forgot.forgotten,
        forgotten_events=forgot.forgotten_events,
        held_back_by=forgot.held_back_by,
        is_due=cleared.is_due or bool(forgot.trouble),
        trouble="; ".join(filter(None, (forgot.trouble, cleared.trouble))),
    )


async def _forget(ledger: Ledger, terms: Retention) -> MoveOutcome:
    """Remove the oldest exports of the archive, if the setting says so."""
    if terms.forget_after_s is None:
        return MoveOutcome()
    head, newest = await ledger.log.head(), await newest_archived(ledger.log)
    if newest is None:
        return MoveOutcome()
    try:
        folder = await anyio.to_thread.run_sync(local_folder, terms.to)
        await anyio.to_thread.run_sync(require_place, folder, ledger.names, head, newest)
        done = await Forgetter(ledger.log, folder, lambda: ledger.stamp(BY)).run(
            _ago(ledger, terms.forget_after_s)
        )
    except LedgerError as error:
        return MoveOutcome(trouble=f"no export is forgotten: {error}")
    except OSError as error:
        where = error.filename or terms.to
        return MoveOutcome(
            trouble=f"an export is not removed from the archive, {where}: {error.strerror or error}"
        )
    return MoveOutcome(forgotten=done.exports, forgotten_events=done.events, held_back_by=done.held_back_by)


async def _clear(ledger: Ledger, terms: Retention) -> MoveOutcome:
    stored = StoredValues(ledger.inbox, ledger.names, ledger.inputs)
    try:
        folder = await anyio.to_thread.run_sync(local_folder, terms.to)
        done = await clear_values(ledger.log, stored, folder, ledger.clock.now())
    except LedgerError as error:
        return MoveOutcome(is_due=True, trouble=f"no large value is deleted: {error}")
    except OSError as error:
        where = error.filename or terms.to
        why = f"the archive cannot be read, {where}: {error.strerror or error}"
        return MoveOutcome(is_due=True, trouble=f"no large value is deleted: {why}")
    return MoveOutcome(is_due=done.is_late, values=done.deleted, values_bytes=done.bytes)


async def _move(ledger: Ledger, projection: Path, terms: Retention, *, makes: bool) -> MoveOutcome:
    log, folder = ledger.log, await anyio.to_thread.run_sync(local_folder, terms.to)
    head, newest = await log.head(), await newest_archived(ledger.log)

    def require() -> None:
        require_place(folder, ledger.names, head, newest, makes=makes)

    await anyio.to_thread.run_sync(require)
    before = _ago(ledger, terms.keep_s)
    last, held_back_by = await bound(log, before, ledger.leases)
    found = await _slice(ledger, head, last, terms)
    count = counting(log, projection, past=lambda: open_archive(log, folder))
    deps = archive_deps(ledger, by=BY, on_progress=lambda _step, _done, _total: None, count=count)
    done = await Archiver(log, folder, deps).run(before, through=found.through)
    after = await log.head()
    return MoveOutcome(
        events=done.events,
        jobs_archived=done.jobs_archived,
        jobs_carried=done.jobs_carried,
        exports=tuple(each.name for each in done.exports),
        first_sequence=done.first_sequence,
        is_due=True,
        trouble="" if done.events else await _too_full(ledger, after, terms, last, held_back_by, found),
    )


async def _slice(ledger: Ledger, head: Head, last: int, terms: Retention) -> Slice:
    """Return how far to go: until the ledger is not too full, and all that is too old is moved."""
    by_size = Slice(0, 0, 0)
    if wanted := _wanted(head, terms):
        by_size = await find_slice(ledger.log, head, last, wanted=wanted)
    if not await _is_old(ledger, head, terms):
        return by_size
    assert terms.max_age_s is not None, "something is too old"
    old = await stored_before(ledger.log, head, _ago(ledger, terms.max_age_s))
    by_age = await find_slice(ledger.log, head, min(last, old), wanted=None)
    return max(by_size, by_age, key=lambda each: each.through)


async def _too_full(  # noqa: PLR0917 - all that may be the reason
    ledger: Ledger, head: Head, terms: Retention, last: int, held_back_by: str, found: Slice
) -> str:
    """Return why a ledger stays fuller than it should be, "" if it does not."""
    if not _wanted(head, terms) or head.bytes_max is None:
        return ""
    full = f"{head.stored_bytes / head.bytes_max:.0%} of the ledger's room is taken, and"
    if last >= head.first_sequence:
        return (
            f"{full} nothing can be moved: {found.waits:,} unfinished jobs would have to be carried on, which takes too much "
            "of what moving frees; let workers finish them, or give it room with `jobledger ledger resize SIZE`"
        )
    if held_back_by:
        return f"{full} nothing can be moved: {held_back_by} holds everything back"
    first = await ledger.log.get(head.first_sequence)
    age_s = 0.0 if first is None else max(1.0, (ledger.clock.now() - as_utc(first.stored_at)).total_seconds())
    need = head.stored_bytes / terms.start * terms.keep_s / max(age_s, 1.0)
    return (
        f"{full} all of it is younger than the {duration(terms.keep_s)} that it is kept: for that the ledger needs about "
        f"{size(need)} (`jobledger ledger resize SIZE`), or keep it for less time"
    )


def _pause_s(terms: Retention, head: Head, events: int, seconds: float) -> float:
    """Return the pause before the next look, given that `events` came in the last `seconds`.

    It is the pause that is set, but ends before half of the room left up to `start` is taken. Beyond `start` it is a
    minute at most: events that could not be moved may be movable soon.
    """
    held = head.last_sequence - head.first_sequence + 1
    if head.bytes_max is None or not events or held <= 0:
        return terms.every_s
    left = terms.start * head.bytes_max - head.stored_bytes
    if left <= 0:
        return min(terms.every_s, _AGAIN_S)
    bytes_s = events * head.stored_bytes / held / max(seconds, _PAUSE_S_MIN)
    return min(terms.every_s, max(_PAUSE_S_MIN, left / 2 / bytes_s))


#: Moves events once, wherever that is done, or deletes large values once; see `move` and `clear_once`.
Work = Callable[[], Awaitable[MoveOutcome]]


class Keeper:
    """Looks at one ledger, and has events moved, for as long as it holds the lease."""

    def __init__(
        self, ledger: Ledger, work: Work, *, clear: Work | None = None, default_to: str = ""
    ) -> None:
        """`clear`: forgets exports and deletes large values, as `clear_once` does; None: nobody does.

        `default_to`: where events are moved while nobody has said where.
        """
        self._ledger = ledger
        self._work = work
        self._clear = clear
        self._clear_at = 0.0  # time of the next look at large values, by the monotonic clock
        self._cleared = MoveOutcome()  # outcome of the last look at large values
        self._default_to = default_to
        self._started_at = ledger.clock.now()
        self._archive = default_to
        self._moved = MoveOutcome()  # outcome of the last look
        self._away = ""  # why the folder of the archive cannot be used; "": it can
        self._trouble = ""  # the trouble of these that was reported last
        self._looked_at = self._started_at
        self._place_up: bool | None = None
        self._is_looking = False  # a thread looks at the folder of the archive
        self._place_looks = anyio.CapacityLimiter(1)  # own threads, so that no other work delays a look
        self._revision = 0

    async def run(self) -> None:
        """Look until cancelled; meanwhile another process may be the keeper.

        Raises: UnreachableError, what asking the server raises: run it again.
        """
        pause_s = await self._ledger.leases.duration_s() / _RENEWALS_PER_LEASE
        while True:
            self._archive = (await retention_of(self._ledger, self._default_to)).to
            # Without a place it would keep out a keeper that was started with one. A keeper of another user has a lease of
            # another name.
            if self._archive and await keeper_of(self._ledger) is None:
                try:
                    self._revision = await self._ledger.leases.take(self._info())
                    await self._hold(pause_s)
                except LeaseLostError as error:
                    logger.debug("this process is not the keeper: %s", error)
            await asyncio.sleep(pause_s)

    async def _hold(self, pause_s: float) -> None:
        """Look while the lease is renewed, until there is no place. Raises: LeaseLostError when it is lost, what a look raises."""
        looking = asyncio.create_task(self._look_again(), name="keeper")
        try:
            while True:
                done, _ = await asyncio.wait({looking}, timeout=pause_s)
                if done:
                    return await looking
                self._revision = await self._ledger.leases.renew(self._info(), self._revision)
        finally:
            looking.cancel()
            await asyncio.wait({looking})
            await self._give_back()

    async def _give_back(self) -> None:
        with anyio.move_on_after(_FAREWELL_S, shield=True), contextlib.suppress(LedgerError):
            await self._ledger.leases.renew(self._info(stopped=True), self._revision)

    async def _look_again(self) -> None:
        """Look now and then until no place is set for the archive."""
        clock = self._ledger.clock
        begin, before = clock.monotonic(), await self._ledger.log.head()
        while True:
            terms = await retention_of(self._ledger, self._default_to)
            self._archive = terms.to
            if not terms.to:
                return
            for _ in range(_RUNS_MAX):
                moved = await self._look(terms)
                if not moved.goes_on:
                    break
            head, now = await self._ledger.log.head(), clock.monotonic()
            pause_s = _pause_s(terms, head, head.last_sequence - before.last_sequence, now - begin)
            await self._rest(terms, pause_s, is_full=_wanted(head, terms) > 0)
            begin, before = now, head

    async def _rest(self, terms: Retention, pause_s: float, *, is_full: bool) -> None:
        """Wait until the next look, or until the setting changes, the folder is back, or the ledger is too full."""
        clock = self._ledger.clock
        until = clock.monotonic() + pause_s
        while (left_s := until - clock.monotonic()) > 0:
            await asyncio.sleep(min(left_s, _GLANCE_S))
            if await retention_of(self._ledger, self._default_to) != terms:
                return
            head = await self._ledger.log.head()
            if not is_full and _wanted(head, terms):
                return
            was_away = self._away
            await self._see_place(terms, head)
            if was_away and not self._away:
                return

    async def _look(self, terms: Retention) -> MoveOutcome:
        moved = MoveOutcome()
        if terms.to and await _is_due(self._ledger, terms):
            try:
                async with asyncio.timeout(_RUN_S_MAX):
                    moved = await self._work()
            except TimeoutError:
                moved = MoveOutcome(trouble=f"a run took more than {_RUN_S_MAX:,.0f} s and was ended")
        if moved.events:
            logger.info(
                "moved %d events into %s; the ledger begins at stream sequence %d",
                moved.events,
                terms.to,
                moved.first_sequence,
            )
        self._moved = moved
        await self._see_place(terms, await self._ledger.log.head())
        if terms.to and not moved.goes_on:
            await self._see_values(terms)
        return moved

    async def _see_values(self, terms: Retention) -> None:
        """Have old exports forgotten and large values deleted, now and then, while the archive is there."""
        monotonic = self._ledger.clock.monotonic
        if self._clear is None or self._away or monotonic() < self._clear_at:
            return
        self._clear_at = monotonic() + _CLEAR_AGAIN_S  # set before the look, which may end the keeper
        try:
            async with asyncio.timeout(_CLEAR_S_MAX):
                cleared = await self._clear()
        except TimeoutError:
            cleared = MoveOutcome(
                is_due=True,
                trouble=f"a look at old exports and large values took more than {_CLEAR_S_MAX:,.0f} s and was ended; "
                "`jobledger retention run --once`, run beside this keeper, takes as long as it needs",
            )
        except Exception as error:  # noqa: BLE001 - as of a killed process: events are to be moved all the same
            cleared = MoveOutcome(
                is_due=True, trouble=f"a look at large values ended: {str(error) or type(error).__name__}"
            )
        if not cleared.is_due:
            self._clear_at = monotonic() + _CLEAR_EVERY_S
        self._cleared = cleared
        if cleared.forgotten:
            logger.info(
                "forgot %d exports of the archive, with %d events",
                len(cleared.forgotten),
                cleared.forgotten_events,
            )
        if cleared.values:
            logger.info(
                "deleted %d large values, %d bytes, that no event names", cleared.values, cleared.values_bytes
            )
        await self._see_place(terms, await self._ledger.log.head())

    async def _see_place(self, terms: Retention, head: Head) -> None:
        """Look whether the folder of the archive is there, and note what is wrong at this moment."""
        self._away = await self._why_no_place(terms, head)
        self._place_up = not self._away and not self._moved.unwritten
        of_events = self._moved.trouble or self._away
        trouble = (of_events or self._cleared.trouble or self._cleared.held_back_by)[:_TROUBLE_MAX]
        if not of_events:
            self._looked_at = self._ledger.clock.now()
        if trouble and trouble != self._trouble:
            logger.warning("%s", trouble)
        self._trouble = trouble

    async def _why_no_place(self, terms: Retention, head: Head) -> str:
        """Return why the folder of the archive cannot be used, "" if it can. Raises: what reading the ledger raises."""
        newest = await newest_archived(self._ledger.log)

        def look() -> None:
            is_default = terms.to == self._default_to
            try:
                folder = local_folder(terms.to, is_read=False)
                try:
                    is_marked(folder, self._ledger.names, head, newest, makes=is_default)
                except (
                    ArchiveAbsentError
                ):  # perhaps another machine moved events since this one read the place
                    is_marked(local_folder(terms.to), self._ledger.names, head, newest, makes=is_default)
            finally:
                self._is_looking = False

        silent = (
            f"the folder of the archive, {terms.to}, gave no answer within {_PLACE_S:g} s: look at its disk"
        )
        if self._is_looking:  # the disk hangs: it holds one thread, and not one more with each look
            return silent
        self._is_looking = True
        try:
            with anyio.fail_after(_PLACE_S):
                await anyio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._place_looks)
        except TimeoutError:
            return silent
        except OSError as error:
            return f"the archive cannot be read, {error.filename or terms.to}: {error.strerror or error}"
        except LedgerError as error:
            return str(error)
        return ""

    def _info(self, *, stopped: bool = False) -> WorkerInfo:
        user = self._ledger.leases.user
        return WorkerInfo(
            worker=f"{user}.{KEEPER}" if user else KEEPER,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=(),
            started_at=self._started_at,
            renewed_at=self._ledger.clock.now(),
            version=VERSION,
            reads=FORM,
            kind="client",  # so that no list of workers shows it
            reader=KEEPER,
            stopped=stopped,
            archive=self._archive,
            trouble=self._trouble,
            looked_at=self._looked_at,
            place_up=self._place_up,
        )


async def keeper_of(ledger: Ledger) -> WorkerInfo | None:
    """Return the keeper of a ledger, under any user of the server; None without one. Raises: ServerUnreachableError."""
    return keeper_among(await ledger.leases.all(clients=True))

"""Whether a ledger works: every check of server, streams, consumers, clock, workers and projection, in one order."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio.to_thread
import msgspec

from jobledger.admin import checks
from jobledger.admin.amounts import duration
from jobledger.admin.checks import Check
from jobledger.admin.diagnoses import Diagnosis, diagnose
from jobledger.admin.held import present
from jobledger.admin.ledger_room import room_of
from jobledger.admin.owners import unfinished_erasures
from jobledger.admin.projection import projection_status
from jobledger.admin.rows import Rows
from jobledger.admin.server_pages import Monitor, check_pages
from jobledger.admin.verbs.retention import retention_now
from jobledger.audit.watch import AuditState, audited
from jobledger.ledger.client import Ledger
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.connection import connect
from jobledger.ledger.model.errors import (
    ConfigurationError,
    CorruptLedgerError,
    InvalidError,
    LedgerError,
    LedgerNotFoundError,
)
from jobledger.ledger.model.limits.flow import FLOW, MAIN
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.model.named_chain import newest
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.model.times import as_utc
from jobledger.ledger.nats.access import NO_ACCESS, Access
from jobledger.ledger.nats.addresses import shown
from jobledger.ledger.nats.connection import open_connection
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.nats.pauses import agrees, queue_of_work
from jobledger.ledger.nats.streams import find_stream, require_ledger, specifications, tables_specification
from jobledger.projections import EventGapError, ProjectionError, Store
from jobledger.projections.agreement import refuse_lost_beginning
from jobledger.projections.statistics.tally import microseconds
from jobledger.projections.tables.unreadable import count_set_aside

# Checks of limits by `doctor`, in addition to its diagnoses: jobs that nobody grants, jobs that nobody starts.

#: How long the reactor may leave jobs ungranted that could start, before a check warns.
GRANT_WITHIN_S: Final = 3.0
#: How long a job may wait for its worker after it was admitted; later it is put back.
START_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.1
_NAMED_MAX: Final = 5
_UNSTARTED: Final = "SELECT count(*) FROM jobs WHERE status = 'queued' AND limits <> '' AND since_us < ?"


async def check_limits(ledger: Ledger, path: Path) -> list[Check]:
    """Check jobs that are held, and jobs that were admitted; return nothing if no job was ever held.

    `path`: the projection's file, which tells how long jobs wait to be started.

    Raises: CorruptLedgerError, PayloadMissingError, UnreachableError, ProjectionError.
    """
    if await ledger.log.last(ledger.names.all_of_type("held")) is None:
        return []
    found: list[Check] = []
    async with present(ledger) as granter:
        waiting = len(granter.lines)
        could = len(granter.decide(ledger.clock.now()).grants)
    if could and not await _is_granted(ledger):
        said = (
            f"{could:,} of {waiting:,} held jobs could start, and nobody grants them for {GRANT_WITHIN_S:g} s"
        )
        advice = "is a worker running that hosts reactors? its log says why the limits stand still"
        found.append(Check(check="limits", status="warn", found=said, advice=advice))
    unstarted = await asyncio.to_thread(_unstarted, ledger.clock.now(), path)
    if unstarted:
        said = f"{unstarted:,} jobs hold their limits for more than {START_WITHIN_S:g} s, and no worker started them"
        advice = "`jobledger workers list` shows who serves their queues, and how busy they are"
        found.append(Check(check="limits", status="warn", found=said, advice=advice))
    return found or [Check(check="limits", status="ok", found=f"{waiting:,} jobs held")]


async def _is_granted(ledger: Ledger) -> bool:
    """Return whether somebody grants jobs within the time that the reactor may take."""
    chain = FLOW.chain(ledger.names, MAIN)
    before = (await end_of_chain(ledger.log, chain)).last_sequence
    deadline = asyncio.get_running_loop().time() + GRANT_WITHIN_S
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_LOOK_S)
        if (await end_of_chain(ledger.log, chain)).last_sequence > before:
            return True
    return False


def _unstarted(now: datetime, path: Path) -> int:
    since = now - timedelta(seconds=START_WITHIN_S)
    with Store.open(path) as store:
        ((count,),) = store.select(_UNSTARTED, (microseconds(since),))
    return int(count)


#: Gives the rows of a connected ledger.
RowsOf = Callable[[Ledger], Rows]

#: Given the projection of the ledger that is there now, returns a sentence on an earlier ledger there, or None.
FormerLedger = Callable[[Path | None], str | None]

#: With this many events unread, the next list takes seconds longer.
LAG_WARN_EVENTS: Final = 100_000
#: A ledger that nobody makes room in, and that is full sooner than this, is a failure.
_FULL_FAIL: Final = timedelta(days=1)
#: A sealer seals each minute unless told otherwise.
SEAL_WARN_S: Final = 3_600.0
_BACK_UP: Final = "bring the store back from a back-up; `jobledger audit verify` says what else is wrong"

_LOOK_INTO: Final = (
    "`jobledger audit verify` names them; find out who publishes there, then `jobledger audit acknowledge`"
)


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What is examined."""

    url: str
    environment: str = ""
    access: Access = NO_ACCESS
    inbox_prefix: str = ""  #: see `LedgerConfig.inbox_prefix`
    monitors: tuple[Monitor, ...]  #: the servers' monitoring pages
    directory: Path  #: where an embedded server would keep its store
    former_ledger: FormerLedger = lambda _now: None  #: what this machine knows of a ledger there that is gone


class Health(NamedTuple):
    """What was found."""

    checks: list[Check]  #: all checks, in the order in which they were made
    diagnoses: list[Diagnosis]  #: problems, first those that stop work; none if nothing could be looked at
    stopped: LedgerError | None  #: why there was nothing to look at: no server, or no ledger

    @property
    def is_good(self) -> bool:
        """Whether nothing failed; a warning is no failure."""
        return all(check.status != "fail" for check in self.checks) and all(
            each.level != "fail" for each in self.diagnoses
        )


async def examine(asked: Examination, rows: RowsOf) -> Health:
    """Look at everything, in the order of their dependencies, and change nothing.

    `rows` gives the projection's rows of a ledger. An error on the way is the last check.

    Raises: ConfigurationError, InvalidTokenError for the environment.
    """
    Names(asked.environment)  # a wrong name is refused before anything is asked
    found: list[Check] = []
    diagnoses: list[Diagnosis] = []
    stopped = None
    try:
        if await _look_at_server(found, asked):
            await _look_at_ledger(found, diagnoses, asked, rows)
    except ConfigurationError:
        raise
    except (LedgerError, ProjectionError) as error:
        if isinstance(error, LedgerNotFoundError) or (not found and isinstance(error, LedgerError)):
            stopped = error
        # After the colon the sentence says what to do.
        found.append(Check(check="ledger" if found else "server", status="fail", found=str(error)))
    disk = checks.check_disk(asked.directory)
    return Health(found if disk is None else [*found, disk], diagnoses, stopped)


async def _look_at_server(found: list[Check], asked: Examination) -> bool:
    """Check what needs no ledger, and make none; return whether all of its streams exist and are right."""
    config = LedgerConfig(url=asked.url, environment=asked.environment)
    names = Names(asked.environment)
    connection = await open_connection(
        asked.url,
        name="jobledger-doctor",
        timeout_s=config.connect_timeout_s,
        access=asked.access,
        inbox_prefix=asked.inbox_prefix,
    )
    try:
        inbox = Inbox(connection)
        await inbox.open()
        found += await checks.check_server(connection, shown(asked.url))
        found.append(await checks.check_jetstream(inbox))
        found += await check_pages(asked.monitors)
        await _require(inbox, names, asked)
        complete = True
        for spec in specifications(
            names, ledger_bytes_max=config.ledger_bytes_max, lease_s=config.lease_s, replicas=config.replicas
        ):
            check, exists = await checks.check_stream(inbox, spec)
            found.append(check)
            complete = complete and exists and check.status != "fail"
        found += await _tables(inbox, names, config)
        if complete:
            found += await checks.check_consumers(inbox, names.ledger_stream)
        found.append(await checks.check_clock(inbox, names.ledger_stream))
    finally:
        await connection.close()
    return complete


async def _tables(inbox: Inbox, names: Names, config: LedgerConfig) -> list[Check]:
    """Look at the bucket of tables of runs, which the first worker makes that stores one. Raises: UnreachableError."""
    spec = tables_specification(names, bytes_max=0, life_s=config.tables_life_s, replicas=config.replicas)
    check, exists = await checks.check_stream(inbox, spec)
    return [check] if exists else []


async def _require(inbox: Inbox, names: Names, asked: Examination) -> None:
    """Require a ledger. Raises: LedgerNotFoundError, with what this machine knows of a former one."""
    try:
        await require_ledger(inbox, names, shown(asked.url))
    except LedgerNotFoundError as error:
        former = asked.former_ledger(None)
        raise error if former is None else error.with_more(former) from None


async def _look_at_ledger(
    found: list[Check], diagnoses: list[Diagnosis], asked: Examination, rows: RowsOf
) -> None:
    """Check what is read through the ledger: workers, projection, and what hurts."""
    given: dict[str, Any] = {
        "environment": asked.environment,
        "name": "jobledger-doctor",
        "create": False,
        **asked.access.given(),
    }
    async with connect(asked.url, **given) as ledger:
        found.append(await _check_workers(ledger))
        found += await _check_pauses(ledger)
        found.append(await _check_beginning(ledger))
        found += await _check_audit(ledger)
        found.append(await _check_retention(ledger))
        found += await _check_erasures(ledger)
        try:
            path = await rows(ledger).path()
        except InvalidError as error:  # workers in containers need no projection, nor a home folder for one
            found.append(Check(check="projection", status="warn", found=str(error)))
            return
        found.append(await _check_projection(ledger, path))
        try:
            found.append(await anyio.to_thread.run_sync(_check_unreadable, path))
        except ProjectionError:  # the line before says why
            said = "not known: no projection here has read the ledger"
            advice = "`jobledger jobs list` makes one; `jobledger audit verify` needs none"
            found.append(Check(check="unreadable", status="warn", found=said, advice=advice))
        else:
            found += await check_limits(ledger, path)
        former = asked.former_ledger(path)
        if former is not None:
            found.append(Check(check="former ledger", status="warn", found=former))
        unread = await _unread(ledger, path)
        if unread is None:
            return
        if unread > LAG_WARN_EVENTS:
            said = f"what hurts is not known: {unread:,} events are to be read first"
            advice = "`jobledger jobs list` reads them"
            found.append(Check(check="diagnoses", status="warn", found=said, advice=advice))
            return
        with tempfile.TemporaryDirectory() as scratch:
            own = rows(ledger) if path.exists() else Rows(ledger, Path(scratch) / "rows.db")
            async with own.opened() as view:
                diagnoses += await diagnose(ledger, view)


async def _unread(ledger: Ledger, path: Path) -> int | None:
    """Return how many events the projection has not read; None if it is of another ledger."""
    status, problem = await projection_status(ledger, path)
    return None if problem is not None else status.lag_events


async def _check_workers(ledger: Ledger) -> Check:
    live = [info for info in await ledger.leases.all() if not info.stopped]
    jobs, hosts = sum(info.running or 0 for info in live), sum(info.reactors for info in live)
    found = f"{len(live)} live, {jobs} jobs running"
    if live:
        found += f", {hosts or 'none'} of them {'hosts' if hosts < 2 else 'host'} the reactors"  # noqa: PLR2004 - of the verb
    is_good = hosts > 0
    advice = "" if is_good else "start one with `jobledger worker --app MODULE`"
    return Check(check="workers", status="ok" if is_good else "warn", found=found, advice=advice)


async def _check_pauses(ledger: Ledger) -> list[Check]:
    """Look whether each queue's consumers are paused just when it is. Raises: UnreachableError."""
    now, states = ledger.clock.now(), await newest(ledger.log, QUEUE)
    found: list[Check] = []
    listed = await list_consumers(ledger.inbox, ledger.names.ledger_stream) if states else []
    wrong = [
        info.name
        for info in listed
        if not agrees(info, states.get(queue_of_work(info.name), QueueState()), now)
    ]
    if wrong:
        said = f"consumer {wrong[0]} is {'not ' if states[queue_of_work(wrong[0])].is_paused(now) else ''}paused, unlike its queue"
        said += f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        advice = "a running worker brings it in line within a minute; if it does not, its log says why"
        found.append(Check(check="pauses", status="warn", found=said, advice=advice))
    return found


async def _check_beginning(ledger: Ledger) -> Check:
    """Look whether what came before the ledger's first event was archived. Raises: UnreachableError."""
    head = await ledger.log.head()
    found = f"begins at stream sequence {head.first_sequence:,}, ends at {head.last_sequence:,}"
    try:
        await refuse_lost_beginning(ledger.log, 0, head)
    except EventGapError as error:
        lost = f"{error.expected:,} to {error.found - 1:,}"
        found = f"{found}, and no archive run moved {lost}: they were lost"
        return Check(check="ledger", status="fail", found=found, advice=_BACK_UP)
    return Check(check="ledger", status="ok", found=found)


def _check_unreadable(path: Path) -> Check:
    """Look whether the ledger has messages that are no events, up to where the projection has read.

    Raises: ProjectionError.
    """
    with Store.open(path) as store:
        aside, through = count_set_aside(store.select), store.position().stream_sequence
    if not aside.unacknowledged:
        accepted = f"; {aside.count:,} acknowledged" if aside.count else ""
        found = f"none up to stream sequence {through:,}{accepted}"
        return Check(check="unreadable", status="ok", found=found)
    what = "message that is no event" if aside.unacknowledged == 1 else "messages that are no events"
    found = f"{aside.unacknowledged:,} {what} up to stream sequence {through:,}, not yet acknowledged"
    return Check(check="unreadable", status="warn", found=found, advice=_LOOK_INTO)


async def _check_audit(ledger: Ledger) -> list[Check]:
    """Look how far the ledger is sealed, and when it was checked last. Raises: UnreachableError."""
    try:
        found = await audited(ledger.log)
    except CorruptLedgerError as error:
        return [Check(check="seals", status="fail", found=str(error))]
    now = ledger.clock.now()
    return [_seals(found, now), *_verified(found, now), *_archived(found, now)]


def _seals(found: AuditState, now: datetime) -> Check:
    if found.sealed_through is None or found.sealed_at is None:
        return Check(check="seals", status="ok", found="none; `jobledger audit seal` makes them")
    age_s = (now - as_utc(found.sealed_at)).total_seconds()
    unsealed = f"{found.unsealed:,} events after it"
    said = f"the newest goes up to {found.sealed_through:,}, {duration(max(0.0, age_s))} ago; {unsealed}"
    if found.unsealed and age_s > SEAL_WARN_S:
        advice = "start the sealer again: `jobledger audit seal --key FILE --follow`"
        return Check(check="seals", status="warn", found=said, advice=advice)
    return Check(check="seals", status="ok", found=said)


async def _check_erasures(ledger: Ledger) -> list[Check]:
    """Name erasures of owners that nobody brought to their end. Raises: UnreachableError, CorruptLedgerError."""
    if not isinstance(ledger.keys, OwnerKeys) or not (owners := await unfinished_erasures(ledger)):
        return []
    more = f" and {len(owners) - _NAMED_MAX:,} more" if len(owners) > _NAMED_MAX else ""
    said = f"the erasure of {', '.join(owners[:_NAMED_MAX])}{more} is not done"
    advice = f"`jobledger erase {owners[0]} --reason ...` goes on with it"
    return [Check(check="erasures", status="warn", found=said, advice=advice)]


async def _check_retention(ledger: Ledger) -> Check:
    """Look whether somebody moves old events away, and how long the room lasts if not. Raises: UnreachableError."""
    shown = await retention_now(ledger)
    stream = await find_stream(ledger.inbox, ledger.names.ledger_stream)
    room = None if stream is None else await room_of(ledger, stream, ledger.clock.now())
    lasts = None if room is None else room.lasts
    full = (
        ""
        if lasts is None
        else f"; as it grew lately, the ledger is full in {duration(lasts.total_seconds())}"
    )
    is_late = lasts is not None and lasts < _FULL_FAIL
    if shown.trouble:
        return Check(check="retention", status="fail" if is_late else "warn", found=f"{shown.trouble}{full}")
    if shown.keeper and shown.archive:
        said = f"process {shown.keeper} moves old events into {shown.archive}{full}"
        return Check(check="retention", status="ok", found=said)
    if shown.terms.to:
        advice = (
            "start `jobledger retention run` on the machine that has the folder, or a gateway with `--keeper`"
        )
        said = f"nobody moves old events into {shown.terms.to}{full}"
        return Check(check="retention", status="fail" if is_late else "warn", found=said, advice=advice)
    advice = "say where with `jobledger retention set --to DIR`, then start `jobledger retention run`"
    is_short = room is not None and room.is_short
    return Check(
        check="retention",
        status="fail" if is_late else "warn" if is_short else "ok",
        found=f"nobody moves old events away{full}",
        advice=advice if is_short or is_late else "",
    )


def _archived(found: AuditState, now: datetime) -> Iterator[Check]:
    if found.archived_at is not None and found.archived_through is not None:
        age = duration(max(0.0, (now - as_utc(found.archived_at)).total_seconds()))
        said = f"the newest run, {age} ago, moved events up to {found.archived_through:,}"
        yield Check(check="archive", status="ok", found=said)


def _verified(found: AuditState, now: datetime) -> Iterator[Check]:
    verified = found.verified
    if verified is None:
        return
    age = duration(max(0.0, (now - as_utc(verified.at)).total_seconds()))
    said = f"the newest check on record, {age} ago, up to {verified.to_sequence:,}: "
    if verified.sound:
        yield Check(check="verify", status="ok", found=f"{said}sound")
    else:
        yield Check(
            check="verify",
            status="fail",
            found=f"{said}NOT sound, {verified.violations:,} violations",
            advice="`jobledger audit verify` names them",
        )


async def _check_projection(ledger: Ledger, path: Path) -> Check:
    status, problem = await projection_status(ledger, path)
    if problem is not None:
        return Check(check="projection", status="fail", found=str(problem))
    if not status.exists:
        return Check(check="projection", status="ok", found="none yet; `jobledger jobs list` makes it")
    if not status.lag_events:
        found = f"up to date, at stream sequence {status.position:,}"
        return Check(check="projection", status="ok", found=found)
    found = f"at stream sequence {status.position:,}, {status.lag_events:,} events behind"
    if status.lag_events > LAG_WARN_EVENTS:
        advice = "the next list has to read them first: let `jobledger projection run` follow the ledger"
        return Check(check="projection", status="warn", found=found, advice=advice)
    return Check(check="projection", status="ok", found=f"{found}; lists catch up by themselves")

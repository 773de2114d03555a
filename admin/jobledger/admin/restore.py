"""Bringing a back-up back into a server that has none of its streams, and proving one on a server of its own.

The ledger's stream comes first, and takes no event of a job until all else is back: no client connects to it, no worker
claims a job, and after an interruption it shows that the restore was not finished.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio.to_thread
import msgspec

from jobledger.admin.archived import payload_places
from jobledger.admin.backup import Backup, BackupDamagedError, check_files
from jobledger.audit.verify import Report, verify
from jobledger.ledger import Ledger
from jobledger.ledger.connection import connect_without_streams
from jobledger.ledger.files import open_file
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.job import CLOSED_STATES, OPEN_STATES, Job, JobState, evolve
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.model.queue_pause import QUEUE, PauseQueue, decide
from jobledger.ledger.model.reactor import REACTOR, RESTORE, Restored
from jobledger.ledger.named_values import change
from jobledger.ledger.nats.fleet_clock import FleetClock
from jobledger.ledger.nats.pauses import bring_in_line
from jobledger.ledger.nats.snapshots import (
    closed_subjects,
    delete_streams,
    is_closed,
    make_consumer_again,
    marked,
    open_ledger,
    require_mark,
    restore_snapshot,
)
from jobledger.ledger.nats.streams import ensure_streams, find_stream, specifications
from jobledger.ledger.server import EmbeddedServer

_ROOM_BYTES: Final = 1 << 30  #: room of the scratch server, beyond that of the streams
_PAUSE_REASON: Final = "restored from a back-up"

Progress = Callable[[int, int], None]


class RestoredStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is brought back."""

    stream: str
    messages: int
    bytes: int  #: the size of its file


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore brings back, and what it did."""

    backup: str  #: the name of its folder
    at: datetime  #: when the back-up was begun
    environment: str
    through: int  #: the ledger's last stream sequence
    head_hash: str
    streams: tuple[RestoredStream, ...]
    running: int | None = None  #: jobs that ran at the back-up's moment; None: only planned
    waiting: int | None = None  #: jobs that waited then, for a worker or for anything else
    sequence: int | None = None  #: stream sequence of the event `restored`
    paused: tuple[str, ...] = ()  #: queues that are paused now


def plan_restore(folder: Path, backup: Backup) -> Restore:
    """Return what would be brought back."""
    return Restore(
        backup=folder.name,
        at=backup.at,
        environment=backup.environment,
        through=backup.through,
        head_hash=backup.head_hash,
        streams=tuple(
            RestoredStream(stream=each.stream, messages=each.messages, bytes=each.bytes)
            for each in backup.streams
        ),
    )


async def check_place(ledger: Ledger, backup: Backup, *, again: bool) -> list[str]:
    """Make sure that a server can take a back-up; return the streams that an unfinished restore left there.

    Raises: RefusedError; UnreachableError.
    """
    names = ledger.names
    if names.environment != backup.environment:
        said = f"--environment {backup.environment}" if backup.environment else "no --environment"
        raise RefusedError(
            f"the back-up is of environment {backup.environment!r}, and {names.environment!r} was asked for: "
            f"give {said}"
        )
    infos = {stream: await find_stream(ledger.inbox, stream) for stream in names.streams}
    found = [stream for stream, info in infos.items() if info is not None]
    if not found:
        return []
    closed = infos[names.ledger_stream]
    if closed is not None and is_closed(names, closed):
        if again:
            return found
        raise RefusedError(
            "an earlier restore into this server was not finished: `jobledger restore DIR --again` removes what it "
            "left, and begins again"
        )
    raise RefusedError(
        f"the server has {', '.join(found)} already: restore into an empty server, or into one without "
        "these streams"
    )


async def restore(
    ledger: Ledger,
    folder: Path,
    backup: Backup,
    *,
    by: str,
    paused: bool = False,
    again: bool = False,
    lost_through: int | None = None,
    on_progress: Progress = lambda _done, _total: None,
) -> Restore:
    """Bring an environment back, record that, and let workers in.

    `ledger`: a client of `connect_without_streams`, with a `FleetClock`. `paused`: every queue that had a job is paused
    before work can begin. `again`: remove what an unfinished restore left. `lost_through`: the last stream sequence
    that was used before, if known.

    Raises: RefusedError, BackupDamagedError: nothing was changed; LedgerFullError, LedgerError, UnreachableError, OSError:
        call it again, with `again`.
    """
    await anyio.to_thread.run_sync(check_files, folder, backup)
    left = await check_place(ledger, backup, again=again)
    if lost_through is not None and lost_through < backup.through:
        raise RefusedError(
            f"the back-up goes up to {backup.through}, so {lost_through} is not the last stream sequence before"
        )
    names, inbox = ledger.names, ledger.inbox
    await delete_streams(inbox, sorted(left, key=lambda each: each == names.ledger_stream))
    mark = secrets.token_hex(8)
    await _bring_back(ledger, folder, backup, on_progress, mark)
    await require_mark(inbox, names, mark)
    assert isinstance(ledger.clock, FleetClock)
    await ledger.clock.compare(inbox, names.ledger_stream)
    await _make_leases(ledger, backup)
    jobs, known = await _read_jobs(ledger)
    sequence, through = await _record(
        ledger, backup, name=folder.name, open_jobs=len(jobs), lost_through=lost_through, by=by
    )
    queues = sorted(known) if paused else []
    for queue in queues:
        await _record_pause(ledger, queue, by)
    for each in backup.consumers:
        await make_consumer_again(inbox, each.stream, each.config, each.settled)
    for queue in queues:
        await bring_in_line(inbox, ledger.log, queue)
    await open_ledger(inbox, names, mark)
    running = sum(job.state is JobState.RUNNING for job in jobs)
    return msgspec.structs.replace(
        plan_restore(folder, backup),
        through=through,
        running=running,
        waiting=len(jobs) - running,
        sequence=sequence,
        paused=tuple(queues),
    )


async def _bring_back(
    ledger: Ledger, folder: Path, backup: Backup, on_progress: Progress, mark: str = ""
) -> None:
    """Bring every stream back, the ledger first and closed, and prove its head. Raises: as `restore`.

    `mark` distinguishes this run's ledger from that of another run, which may have removed ours by `again`.
    """
    names, done = ledger.names, 0
    for each in backup.streams:
        on_progress(done, backup.bytes)
        config = _fitting(each.config, clustered=ledger.connection.is_clustered)
        if each.stream == names.ledger_stream:
            config |= {"subjects": closed_subjects(names), "metadata": marked(config, mark)}
        with open_file(folder / each.file) as file:
            await restore_snapshot(ledger.inbox, each.stream, file, config=config, state=each.state)
        if each.stream == names.ledger_stream:
            await _prove_head(ledger, folder, backup)
        done += each.bytes


def _fitting(config: dict[str, Any], *, clustered: bool) -> dict[str, Any]:
    """Return a stream's settings for a server: one that is alone keeps one copy."""
    return dict(config) if clustered else {**config, "num_replicas": 1}


async def _prove_head(ledger: Ledger, folder: Path, backup: Backup) -> None:
    """Make sure that the ledger ends as the back-up says. Raises: BackupDamagedError, after which no stream is left."""
    head = await ledger.log.get(backup.through) if backup.through else None
    if ("" if head is None else head.hash) == backup.head_hash:
        return
    await delete_streams(ledger.inbox, [ledger.names.ledger_stream])
    raise BackupDamagedError(
        f"the ledger in {folder} does not hold the event at stream sequence {backup.through} that the back-up names: "
        "nothing was kept; restore another back-up"
    )


async def _make_leases(ledger: Ledger, backup: Backup) -> None:
    """Make the streams that no back-up has, with the lease that workers had."""
    names, config = ledger.names, backup.streams[0].config
    replicas = config.get("num_replicas", 1) if ledger.connection.is_clustered else 1
    specs = specifications(
        names, ledger_bytes_max=config["max_bytes"], lease_s=backup.lease_s, replicas=replicas
    )
    await ensure_streams(ledger.inbox, [each for each in specs if each.name != names.ledger_stream])


class _LedgerJobs(NamedTuple):
    """The jobs of a ledger that are not over, and every queue that ever had one."""

    open: list[Job]
    queues: set[str]


async def _read_jobs(ledger: Ledger) -> _LedgerJobs:
    """Return the jobs and queues in the ledger's events; of a job that is over only the name is kept in memory."""
    jobs: dict[str, Job] = {}
    closed: set[str] = set()
    queues: set[str] = set()
    async for batch in ledger.log.read():
        for each in batch:
            event = each.event
            queues.add(event.queue)
            if (name := f"{event.queue}/{event.job}") in closed:
                continue
            job = jobs[name] = evolve(jobs.get(name), event, each.stream_sequence)
            if job.state in CLOSED_STATES:
                del jobs[name]
                closed.add(name)
    return _LedgerJobs([job for job in jobs.values() if job.state in OPEN_STATES], queues)


async def _record(
    ledger: Ledger, backup: Backup, *, name: str, open_jobs: int, lost_through: int | None, by: str
) -> tuple[int, int]:
    """Append `restored` of the back-up of this name; return its stream sequence, and that of the event before it."""

    async def attempt() -> tuple[int, int]:
        newest = await end_of_chain(ledger.log, REACTOR.chain(ledger.names, RESTORE))
        through = (await ledger.log.head()).last_sequence
        head = await ledger.log.get(through) if through else None
        stamp = ledger.stamp(by)
        event = Restored(
            reactor=RESTORE,
            at=stamp.at,
            by=stamp.by,
            backup=name,
            backed_up_at=backup.at,
            through_sequence=through,
            head_hash="" if head is None else head.hash,
            lost_through=None if lost_through is None else max(lost_through, through),
            open_jobs=open_jobs,
        )
        entries = REACTOR.link(ledger.names, [event], REACTOR.view(newest.event, newest.last_sequence))
        return await ledger.log.append(entries), through

    return await retry_raced(attempt)


async def _record_pause(ledger: Ledger, queue: str, by: str) -> None:
    """Append `paused` of a queue, also if it is paused: it now stays so until a person resumes it."""
    pause = PauseQueue(reason=_PAUSE_REASON)
    await change(ledger, QUEUE, queue, lambda before, stamp: decide(queue, before, pause, stamp), by=by)


async def verify_backup(folder: Path, backup: Backup, *, on_progress: Progress | None = None) -> Report:
    """Bring a back-up back on a server of its own, on this machine and in a temporary folder, and check the ledger.

    Raises: BackupDamagedError, ServerBinaryMissingError, ServerStartError, LedgerError, OSError.
    """
    await anyio.to_thread.run_sync(check_files, folder, backup)
    with tempfile.TemporaryDirectory(prefix="jobledger-backup-") as scratch:
        server = EmbeddedServer(
            Path(scratch),
            port=0,
            durability="process",
            monitor_port=None,
            max_file_store_bytes=_ROOM_BYTES + sum(_bytes_max(backup)),
        )
        clock = FleetClock()
        async with (
            server,
            connect_without_streams(server.url, clock=clock, environment=backup.environment) as ledger,
        ):
            await _bring_back(ledger, folder, backup, lambda _done, _total: None)
            log = ledger.log
            return await verify(log, payloads=payload_places(ledger, log), on_progress=on_progress)


def _bytes_max(backup: Backup) -> Iterable[int]:
    """Yield how many bytes each stream may take."""
    for each in backup.streams:
        yield max(each.config.get("max_bytes", 0), int(each.state.get("bytes", 0)) * 2)

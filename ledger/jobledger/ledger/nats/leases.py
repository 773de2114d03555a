"""Leases: one key per process, worker or lock-holding client, that expires unless renewed.

Each renewal is conditional on the revision of the last one, so a worker that was away notices. Only the server's clock
decides: if the key is gone, the lease is over. Source: ADR 006.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    RefusedError,
    ServerUnreachableError,
    UnreachableError,
)
from jobledger.ledger.model.forms import FORM_FIRST
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError, header, resolve
from jobledger.ledger.nats.streams import find_stream
from jobledger.ledger.nats.writer import AppendRefusedError, Writer

logger = logging.getLogger("jobledger.leases")

_READ_TIMEOUT_S: Final = 2.0
_NANOSECONDS: Final = 1_000_000_000
_LISTED_MAX: Final = 10_000
_AT_ONCE: Final = 1_000  #: keys in one answer of the server
_END_TRIES_MAX: Final = 3
_TOLD_MAX: Final = 100
#: Most jobs that a worker's lease names.
JOBS_MAX: Final = 100
#: A worker with more tasks does not name them in its lease, which it writes every few seconds.
TASKS_MAX: Final = 500
#: A worker with more schedules does not name them there either.
SCHEDULES_MAX: Final = 500

#: Nor does one with more limits.
LIMITS_MAX: Final = 200

#: The holder of a lease: a worker that runs jobs, or a client that holds locks or reads.
LeaseKind = Literal["worker", "client"]


class LeaseLostError(RefusedError):
    """A lease could not be renewed on its own last revision: it expired, and others may have seen that."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a worker, or a client that holds locks or reads, writes with each renewal."""

    worker: str  #: `<host>-<pid>-<random>`, behind `<user>.` where it connects as a user
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at: datetime
    renewed_at: datetime  #: the server's time, as known to the worker
    running: int | None = 0  #: number of running jobs at the last renewal; None: hidden from the caller
    jobs: tuple[str, ...] = ()  #: ids of running jobs, at most `JOBS_MAX`
    #: Names of the tasks it can run, and `task_word` of each version of a workflow; None: not given.
    tasks: tuple[str, ...] | None = None
    #: Fingerprints of the schedules in its code, by name; None: not given.
    schedules: dict[str, str] | None = None
    #: The limits in its code, by `name`, or `name:key` of its own queues and tasks; None: not given.
    limits: dict[str, Terms] | None = None
    #: Names of the master keys with which it opens owners' keys; None: not given, or a program has them.
    masters: tuple[str, ...] | None = None
    version: str = ""
    reads: int = FORM_FIRST  #: the highest form of a ledger that it reads
    release: str = ""  #: release of the code of its tasks, from `JOBLEDGER_RELEASE`; "": not given
    supervisor: str = ""  #: identity of the process that supervises this one; "": none
    stopped: bool = False  #: True: it ended in good order, or its supervisor found it dead; the lease is over
    kind: LeaseKind = "worker"
    reader: str = ""  #: kind of a client that reads for long, such as `projector`; "" for all others
    concurrency: int = 0  #: most attempts that a worker runs at once; 0: not given
    reactors: bool = False  #: whether it hosts the reactors
    #: Jobs that wait for a lock, by `queue/job`, with the lock, `scope/id`; at most `JOBS_MAX`.
    waits: dict[str, str] = {}
    clock_apart_s: float = 0.0  #: how far its machine's clock is ahead of the server's; below 0: behind it
    clock_apart_since: datetime | None = (
        None  #: since when the clock is too far apart; None: it is not, or not given
    )
    archive: str = ""  #: place to which a keeper moves old events; "" for all others
    trouble: str = (
        ""  #: why a keeper could not move events at its last look; "": it could, or had none to move
    )
    looked_at: datetime | None = (
        None  #: when a keeper last found nothing wrong, or began; None for all others
    )
    place_up: bool | None = None  #: whether a keeper can use its `archive`; None: it has not looked


#: The name of the lease of a ledger's keeper, after its user.
KEEPER: Final = "keeper"


def keeper_among(found: Iterable[WorkerInfo]) -> WorkerInfo | None:
    """Return the keeper of a ledger, of any user; None without one."""
    return next((each for each in found if each.worker.split(".")[-1] == KEEPER and not each.stopped), None)


def task_word(task: str, version: str) -> str:
    """Return the name in a lease for the code of a workflow's version: `order@2`; without a version the task's name."""
    return f"{task}@{version}" if version else task


_decode = msgspec.json.Decoder(WorkerInfo).decode
_UNKNOWN: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Leases(Protocol):
    """The part of a lease store that claims and workers need."""

    user: str  #: user of the server with whose name each lease begins; "": none

    async def duration_s(self) -> float:
        """Return how long a lease is valid after a renewal."""
        ...

    async def renew(self, info: WorkerInfo, revision: int) -> int:
        """Take (revision 0) or renew a lease; return its new revision.

        Raises: LeaseLostError if the key has another revision, ServerUnreachableError.
        """
        ...

    async def find(self, worker: str) -> WorkerInfo | None:
        """Return a worker whose lease lives; None: the lease is over. Raises: ServerUnreachableError."""
        ...


class JetStreamLeases:
    """Leases in the WORKERS bucket."""

    def __init__(self, connection: Connection, inbox: Inbox, writer: Writer, names: Names) -> None:
        self.user = connection.user
        self._connection = connection
        self._inbox = inbox
        self._writer = writer
        self._stream = f"KV_{names.workers_bucket}"
        self._prefix = f"$KV.{names.workers_bucket}."
        self.told_at: datetime | None = None  #: the server's time at the newest answer to `all`
        self._told = deque[str](maxlen=_TOLD_MAX)  # keys that were logged as unreadable

    async def duration_s(self) -> float:
        """Return the bucket's time to live, in seconds: the length of every lease in it.

        Raises: LedgerError if there is no such bucket, and the errors of the request.
        """
        info = await api.stream_info(self._inbox, self._stream)
        return int(info.config["max_age"]) / _NANOSECONDS

    async def renew(self, info: WorkerInfo, revision: int) -> int:
        """Write the key on condition of its revision; see `Leases.renew`."""
        subject = self._prefix + info.worker
        entry = Entry(subject, msgspec.json.encode(info), subject, revision)
        try:
            return await self._put(entry)
        except AppendRefusedError as error:
            if not error.is_lost_race:
                raise
            own_revision = await self._own_newer(entry, info)
            if own_revision is not None:
                with contextlib.suppress(AppendRefusedError):
                    return await self._put(msgspec.structs.replace(entry, expected=own_revision))
            message = f"lease of {info.worker} is lost"
            raise LeaseLostError(message) from error

    async def _put(self, entry: Entry) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._writer.send((entry,), functools.partial(resolve, answer))
        try:
            return await answer
        except (ConnectionLostError, ReplyTimeoutError) as error:
            message = "the lease could not be renewed: no answer"
            raise ServerUnreachableError(message) from error

    async def take(self, info: WorkerInfo) -> int:
        """Take the lease of a name that several processes want, and return its revision.

        Raises: LeaseLostError while another process has it; ServerUnreachableError.
        """
        subject = self._prefix + info.worker
        found = await self._last(subject)
        held = None if found is None else self._read(subject, found[0])
        if found is not None and (held is None or not held.stopped):
            who = "another process" if held is None else f"process {held.pid} of {held.host}"
            raise LeaseLostError(f"lease {info.worker} is held by {who}")
        revision = 0 if found is None else found[1]
        try:
            return await self._put(Entry(subject, msgspec.json.encode(info), subject, revision))
        except AppendRefusedError as error:
            if not error.is_lost_race:
                raise
            raise LeaseLostError(f"lease {info.worker} was just taken by another process") from error

    async def _own_newer(self, entry: Entry, own: WorkerInfo) -> int | None:
        """Return the revision of our own renewal whose answer was lost; None: the lease is over.

        While this process lives, nobody else writes its key, so a newer revision is its own, even if it expected no
        key. The lease is over if the key records that the process has ended, or if another process took the name. A
        lease lasts from the moment it was stored, so the caller writes the key once more, and has the whole time
        again.
        """
        found = await self._last(entry.subject)
        if found is None or (info := self._read(entry.subject, found[0])) is None or info.stopped:
            return None
        if (info.host, info.pid, info.started_at) != (own.host, own.pid, own.started_at):
            return None
        return found[1] if (entry.expected or 0) < found[1] else None

    async def end(self, worker: str) -> bool:
        """Mark a worker as gone, so that nobody waits for its lease to expire; return whether that was needed.

        Only for a caller that knows that the worker's process has ended, such as a parent that reaped its child: its
        jobs are taken over from then on. Messages that the dead worker had sent may still arrive; a renewal is then
        refused. Source: ADR 006.

        Raises: ServerUnreachableError, LeaseLostError, AppendRefusedError; all harmless, the key expires.
        """
        subject = self._prefix + worker
        for _ in range(_END_TRIES_MAX):
            found = await self._last(subject)
            if found is None or (info := self._read(subject, found[0])) is None or info.stopped:
                return False
            gone = msgspec.structs.replace(info, running=0, jobs=(), stopped=True)
            try:
                await self._put(Entry(subject, msgspec.json.encode(gone), subject, found[1]))
            except AppendRefusedError as error:
                if not error.is_lost_race:
                    raise  # else a renewal was still on its way, or a replica that lags answered
            else:
                return True
        message = f"lease of {worker} could not be ended: it is renewed all the time"
        raise LeaseLostError(message)

    async def find(self, worker: str) -> WorkerInfo | None:
        """Read the key; see `Leases.find`."""
        found = await self._last(self._prefix + worker)
        if found is None:
            # A replica without the newest key may answer: only the leader knows that there is none.
            data = await self._last_at_leader(self._prefix + worker)
            if data is None:
                return None
            found = data, 0
        info = self._read(self._prefix + worker, found[0])
        if info is None:
            return _unreadable(worker)
        return None if info.stopped else info

    def _read(self, subject: str, data: bytes) -> WorkerInfo | None:
        """Read a key; None, and a sentence in the log, for one that does not hold a lease.

        The process that should own it notices at its next renewal and gives up what it holds, before the key expires.
        """
        try:
            return _decode(data)
        except msgspec.MsgspecError:
            if subject not in self._told:
                self._told.append(subject)
                logger.warning(
                    "key %s of the workers' bucket does not hold a lease that this version can read: the worker "
                    "counts as living until the key expires",
                    subject.removeprefix(self._prefix),
                )
            return None

    async def _last(self, subject: str) -> tuple[bytes, int] | None:
        """Return the newest message of a key, and its revision, from any replica."""
        found = await self._get({"last_by_subj": subject}, batch=False)
        if not found or not found[0][0]:  # a key that was deleted has a message without data
            return None
        return found[0][0], _sequence(found[0][1])

    async def _last_at_leader(self, subject: str) -> bytes | None:
        request = {"last_by_subj": subject}
        try:
            found = await api.get_message(self._inbox, self._stream, request, timeout_s=_READ_TIMEOUT_S)
        except (JetStreamDisabledError, api.ApiError, UnreachableError) as error:
            raise ServerUnreachableError(f"the workers' bucket gave no answer: {error}") from error
        return None if found is None else found.content or None

    async def all(self, *, clients: bool = False) -> list[WorkerInfo]:
        """Return every worker whose key lives, stopped ones included, by name; with `clients` also those that hold locks or read.

        A key that cannot be read is logged and left out; one that holds the lease of another name is left out.

        Raises: ServerUnreachableError.
        """
        info = await find_stream(self._inbox, self._stream, subjects=f"{self._prefix}>")
        if info is not None and info.ts:
            self.told_at = server_time(info.ts)
        subjects = sorted((info and info.state.subjects) or {})[:_LISTED_MAX]
        if not subjects:
            return []
        keys: dict[str, bytes] = {}
        for first in range(0, len(subjects), _AT_ONCE):
            keys |= await self._keys_of(subjects[first : first + _AT_ONCE])
        infos = [(each, self._read(each, keys[each])) for each in subjects if each in keys]
        return [
            info
            for subject, info in infos
            if info is not None
            and (clients or info.kind == "worker")
            and subject == self._prefix + info.worker
        ]

    async def _keys_of(self, subjects: Sequence[str]) -> dict[str, bytes]:
        """Return the values of these keys, without keys that have none. Raises: ServerUnreachableError."""
        found = await self._get({"multi_last": subjects}, batch=True)
        return {header(headers, b"Nats-Subject").decode(): data for data, headers in found if data}

    async def _get(self, request: dict[str, Any], *, batch: bool) -> api.Batch:
        """Ask any replica for messages. Raises: ServerUnreachableError, from which nothing follows for any lease."""
        try:
            return await api.direct_get(
                self._connection, self._inbox, self._stream, request, batch=batch, timeout_s=_READ_TIMEOUT_S
            )
        except (ConnectionLostError, ReplyTimeoutError, api.ApiError) as error:
            raise ServerUnreachableError("the workers' bucket gave no answer") from error


def _unreadable(worker: str) -> WorkerInfo:
    """Return a stand-in for a process whose key cannot be read: nobody may take its work over yet."""
    return WorkerInfo(worker=worker, host="", pid=0, queues=(), started_at=_UNKNOWN, renewed_at=_UNKNOWN)


def _sequence(headers: bytes) -> int:
    return int(header(headers, b"Nats-Sequence"))

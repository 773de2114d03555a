"""The protocols that verbs on jobs need; a connected `Ledger` satisfies them, and a ledger in memory may, too."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from jobledger.ledger.limits.definitions import CodeLimits
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.seals import KeyHolder
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.named_values import Writer
from jobledger.ledger.nats.attempt_logs import JobLogs
from jobledger.ledger.throttle import Throttle


class Values(Protocol):
    """A store of large values; see `Payloads`."""

    def fits_inline(self, text: bytes, *, what: str, of_group: bool = False) -> bool:
        """Return whether an event can carry the value itself."""
        ...

    async def put(
        self, text: bytes, *, what: str, key: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return the value, or a reference to it, for an event; `key` names the key that seals the value, "": none."""
        ...

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None, *, key: str) -> bytes:
        """Return the JSON text that an event carries or refers to; `key`: as in `put`."""
        ...


class JobHints(Protocol):
    """The hints about what happens to jobs; see `Hints`."""

    inbox: str  #: token of the inbox in which this process hears that its jobs have ended

    def watch(self, ref: JobRef) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set when a hint about the job arrives."""
        ...

    def tell_cancel(self, ref: JobRef) -> None:
        """Tell the workers of a job's queue that a cancel request for it is in the ledger."""
        ...

    def tell_resume(self, ref: JobRef) -> None:
        """Tell the workers of a run's queue that it has news."""
        ...


class Client(Writer, Protocol):
    """The client of a ledger that its handles and its enqueuer use."""

    @property
    def form(self) -> int:
        """The highest form of events that it appends."""
        ...

    @property
    def hints(self) -> JobHints:
        """The hints to other processes."""
        ...

    @property
    def inputs(self) -> Values:
        """The store of large inputs."""
        ...

    @property
    def results(self) -> Values:
        """The store of large results."""
        ...

    @property
    def keys(self) -> KeyHolder:
        """The holder of the keys of owners."""
        ...

    @property
    def code_limits(self) -> CodeLimits:
        """The limits that the application's code defines."""
        ...

    @property
    def throttle(self) -> Throttle | None:
        """The throttle that lets new jobs through while the ledger has room; None: no throttle."""
        ...

    async def read_logs(self, ref: JobRef, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return the logs of a job's attempts."""
        ...


class NamesJob(Protocol):
    """An object that stands for one job, such as a handle."""

    @property
    def ref(self) -> JobRef:
        """The job's queue and id."""
        ...


#: How a caller may name a job: its id, its queue and id, or a handle of it.
AnyJob = str | JobRef | NamesJob


def job_name(job: AnyJob, queue: str | None) -> tuple[str, str | None]:
    """Return a job's id, and its queue if it is known.

    Raises: InvalidTokenError; InvalidInputError for a value that names no job, and for a second, different queue.
    """
    if isinstance(job, str):
        return check_token("job id", job), None if queue is None else check_token("queue", queue)
    ref: object = job if isinstance(job, JobRef) else getattr(job, "ref", None)
    if not isinstance(ref, JobRef):
        raise InvalidInputError(f"{job!r} names no job: give its id, its handle or its JobRef")
    if queue not in (None, ref.queue):
        raise InvalidInputError(f"job {ref.job_id} is in queue {ref.queue}, not in {queue}")
    return check_token("job id", ref.job_id), check_token("queue", ref.queue)

"""What the verbs on jobs stand on: protocols, which a connected `Ledger` satisfies and so may one in memory."""

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
    """Where large values lie; see `Payloads`."""

    def fits_inline(self, text: bytes, *, what: str, of_group: bool = False) -> bool:
        """Return whether an event can carry the value itself."""
        ...

    async def put(
        self, text: bytes, *, what: str, key: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return what an event is to carry; `key` names the key that seals the value, "": none does."""
        ...

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None, *, key: str) -> bytes:
        """Return the JSON text that an event carries or refers to; `key`: as in `put`."""
        ...


class JobHints(Protocol):
    """The hints about what happens to jobs; see `Hints`."""

    inbox: str  #: where this process is told that its jobs have ended

    def watch(self, ref: JobRef) -> AbstractContextManager[asyncio.Event]:
        """Give an event that is set when a hint about the job arrives."""
        ...

    def tell_cancel(self, ref: JobRef) -> None:
        """Tell the workers of a job's queue that a cancel request for it is in the ledger."""
        ...

    def tell_resume(self, ref: JobRef) -> None:
        """Tell the workers of a run's queue that it has news."""
        ...


class Client(Writer, Protocol):
    """One client of a ledger, as its handles and its enqueuer use it."""

    @property
    def form(self) -> int:
        """Up to which form it appends events."""
        ...

    @property
    def hints(self) -> JobHints:
        """Who is told early."""
        ...

    @property
    def inputs(self) -> Values:
        """Where large inputs lie."""
        ...

    @property
    def results(self) -> Values:
        """Where large results lie."""
        ...

    @property
    def keys(self) -> KeyHolder:
        """Who has the keys of owners."""
        ...

    @property
    def code_limits(self) -> CodeLimits:
        """What the application's code defines of limits."""
        ...

    @property
    def throttle(self) -> Throttle | None:
        """Lets new jobs through while the ledger has room; None where nobody limits it."""
        ...

    async def read_logs(self, ref: JobRef, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return what the tasks of a job logged."""
        ...


class NamesJob(Protocol):
    """What stands for one job, such as a handle."""

    @property
    def ref(self) -> JobRef:
        """The job's queue and id."""
        ...


#: How a caller may name a job: its id, its queue and id, or a handle of it.
AnyJob = str | JobRef | NamesJob


def job_name(job: AnyJob, queue: str | None) -> tuple[str, str | None]:
    """Return a job's id, and its queue where it is known.

    Raises: InvalidTokenError; InvalidInputError for what names no job, and for a second, different queue.
    """
    if isinstance(job, str):
        return check_token("job id", job), None if queue is None else check_token("queue", queue)
    ref: object = job if isinstance(job, JobRef) else getattr(job, "ref", None)
    if not isinstance(ref, JobRef):
        raise InvalidInputError(f"{job!r} names no job: give its id, its handle or its JobRef")
    if queue not in (None, ref.queue):
        raise InvalidInputError(f"job {ref.job_id} is in queue {ref.queue}, not in {queue}")
    return check_token("job id", ref.job_id), check_token("queue", ref.queue)

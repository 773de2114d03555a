"""A process's lease: one key that proves that the process lives, renewed in time or given up.

By its own monotonic clock the process knows when others may take over what it holds, a worker's jobs or a
client's locks; then it stops its work with them, takes a new identity and starts afresh. So nobody takes over a job or
a lock while its holder may still work on it. Source: ADR 006.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    PermissionRefusedError,
    UnreachableError,
)
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.fleet_clock import apart_s, apart_since
from jobledger.ledger.nats.leases import (
    JOBS_MAX,
    LIMITS_MAX,
    SCHEDULES_MAX,
    TASKS_MAX,
    LeaseKind,
    LeaseLostError,
    Leases,
    WorkerInfo,
)
from jobledger.ledger.nats.outage import Outage

logger = logging.getLogger("jobledger.lease")

_RENEWALS_PER_LEASE: Final = 3
#: A renewal waits for its answer a fifth of a lease: one lost answer leaves time for more tries.
_ANSWERS_PER_LEASE: Final = 5
_RETRY_S: Final = 0.5
_RELEASE_MAX: Final = 100  #: characters
_PATIENCE_S: Final = 5.0  #: for the first lease, while the server is away or does not answer
#: The holder counts its lease shorter by this share, since clocks of two machines may differ in rate, by far less.
_MARGIN: Final = 0.05


class LeaseKeeper:
    """Holds the lease of one process, under a new identity after each loss."""

    def __init__(
        self,
        leases: Leases,
        clock: Clock,
        queues: tuple[str, ...],
        *,
        running: Callable[[], int],
        on_lost: Callable[[str], None],
        kind: LeaseKind = "worker",
        reader: str = "",
        jobs: Callable[[], Iterable[str]] = tuple,
        tasks: tuple[str, ...] | None = None,
        schedules: dict[str, str] | None = None,
        limits: dict[str, Terms] | None = None,
        masters: tuple[str, ...] | None = None,
        supervisor: str = "",
        concurrency: int = 0,
        reactors: bool = False,
        waits: Callable[[], Mapping[str, str]] = dict,
        announce: Callable[[str], None] | None = None,
        outage: Outage | None = None,
    ) -> None:
        """`announce` gets every identity before its first use, for a supervisor that may outlive this process."""
        self._leases = leases
        self._clock = clock
        self._queues = queues
        self._running = running
        self._on_lost = on_lost
        self._kind: LeaseKind = kind
        self._reader = reader
        self._jobs = jobs
        self._tasks = None if tasks is None or len(tasks) > TASKS_MAX else tasks
        self._schedules = None if schedules is None or len(schedules) > SCHEDULES_MAX else schedules
        self._limits = None if limits is None or len(limits) > LIMITS_MAX else limits
        self._masters = masters
        self._supervisor = supervisor
        self._concurrency = concurrency
        self._reactors = reactors
        self._waits = waits
        self._announce = announce
        self._outage = outage or Outage()
        self._revision = 0
        self._valid_until = 0.0
        self._started_at = clock.now()
        self.identity = new_identity(leases.user)
        self.duration_s = 0.0
        self.renewals = 0  #: number of accepted renewals, with the first one of each identity
        self.failures = 0  #: renewals without an answer in time; each is tried again
        self.losses = 0  #: leases that were over before they could be renewed

    @property
    def is_valid(self) -> bool:
        """Whether nobody may take over the jobs or locks of this process yet, by the monotonic clock."""
        return self._clock.monotonic() < self._valid_until

    def holds(self, identity: str) -> bool:
        """Return whether `identity` is ours at present and its lease lives."""
        return identity == self.identity and self._clock.monotonic() < self._valid_until

    async def open(self, *, patience_s: float = _PATIENCE_S) -> None:
        """Learn how long leases last here, and take one; without an answer try again for `patience_s`.

        Raises: UnreachableError, JetStreamDisabledError after that time, or another refusal of the server.
        """
        until = self._clock.monotonic() + patience_s
        while True:
            try:
                self.duration_s = await self._leases.duration_s()
                await self._renew()
            except (UnreachableError, JetStreamDisabledError) as error:  # the server may be starting again
                if self._clock.monotonic() >= until:
                    raise
                logger.warning("no lease yet: %s", error)
                self.identity = new_identity(
                    self._leases.user
                )  # an attempt without an answer may have taken the name
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def run(self) -> None:
        """Renew until cancelled; on a loss call `on_lost` with the old identity, and begin again with a new one.

        Raises: PermissionRefusedError for a reader, which goes on without a lease.
        """
        pause = self.duration_s / _RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(min(pause, self._left_s()) if self._revision else pause)
            pause = self.duration_s / _RENEWALS_PER_LEASE
            try:
                if self._revision and not self.is_valid:
                    self._lose("was not renewed in time")
                async with asyncio.timeout(self._answer_s()):
                    await self._renew()
            except TimeoutError:
                self.failures += 1
                self._outage.note("it does not answer")
                pause = _RETRY_S
            except LeaseLostError:
                self._lose("expired")
                pause = 0.0
            except LedgerError as error:
                if self._reader and isinstance(error, PermissionRefusedError):
                    raise
                self.failures += 1
                self._outage.note(str(error))
                logger.debug("lease of %s: %s; %.1f s left", self.identity, error, self._left_s())
                pause = _RETRY_S
            except Exception:  # any error: a process that renews no more loses all its jobs and locks
                self.failures += 1
                logger.exception("lease of %s; %.1f s left", self.identity, self._left_s())
                pause = _RETRY_S

    def _answer_s(self) -> float:
        """Return how long to wait for an answer: after the lease has ended it is of no use, as the jobs are stopped."""
        limit_s = self.duration_s / _ANSWERS_PER_LEASE
        return min(limit_s, self._left_s()) if self._revision else limit_s

    def _left_s(self) -> float:
        return max(0.0, self._valid_until - self._clock.monotonic())

    def _lose(self, why: str) -> None:
        lost, self.identity = self.identity, new_identity(self._leases.user)
        self.losses += 1
        self._revision = 0
        self._valid_until = 0.0  # the new identity has no lease yet, so it may claim nothing
        logger.log(
            logging.INFO if self._reader else logging.ERROR,  # a reader holds nothing that others need
            "lease of %s %s: what it held is given up, this process goes on as %s",
            lost,
            why,
            self.identity,
        )
        try:
            self._on_lost(lost)
        except Exception:  # an error of `on_lost` must not prevent the new lease
            logger.exception("what was held under the lease of %s", lost)

    async def _renew(self, *, stopped: bool = False) -> None:
        """Write the key; the lease counts from before the request was sent, so never too long."""
        sent_at = self._clock.monotonic()
        identity = self.identity
        if not self._revision and self._announce is not None:
            self._announce(identity)
        revision = await self._leases.renew(self._info(stopped=stopped), self._revision)
        self._outage.over()
        if identity == self.identity:
            self.renewals += 1
            self._revision = revision
            self._valid_until = sent_at + self.duration_s * (1 - _MARGIN)

    def _info(self, *, stopped: bool) -> WorkerInfo:
        return WorkerInfo(
            worker=self.identity,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues,
            started_at=self._started_at,
            renewed_at=self._clock.now(),
            running=self._running(),
            jobs=tuple(islice(self._jobs(), JOBS_MAX)),
            tasks=self._tasks,
            schedules=self._schedules,
            limits=self._limits,
            masters=self._masters,
            supervisor=self._supervisor,
            concurrency=self._concurrency,
            reactors=self._reactors,
            version=VERSION,
            reads=FORM,
            release=os.environ.get("JOBLEDGER_RELEASE", "")[:_RELEASE_MAX],
            stopped=stopped,
            kind=self._kind,
            reader=self._reader,
            waits=dict(islice(self._waits().items(), JOBS_MAX)),
            clock_apart_s=round(apart_s(self._clock), 1),
            clock_apart_since=apart_since(self._clock),
        )

    async def close(self) -> None:
        """Record that this process has ended, so that nobody waits for its lease to expire.

        Raises: LeaseLostError, UnreachableError; both harmless, the key expires.
        """
        await self._renew(stopped=True)

"""The state of the reactor of the limits: the fold of what it reads, and the queues whose jobs may be granted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.events import PRIORITIES, Carried, Held, JobEvent
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.definition import LIMIT, Terms
from jobledger.ledger.model.limits.flow import FLOW, Granted
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.workers.reactors.flow.place import Chain
from jobledger.workers.reactors.flow.seats import Fleet
from jobledger.workers.reactors.flow.spill import DiskSpill

#: The limit of a queue whose jobs wait where they can be put in a fair order.
_FAIR: Final = "queue:"
#: How many jobs of such a queue may be ready for each that may run.
_READY: Final = 2


class GrantFold:
    """Folds what is read into a `Granter`, and tells who else has to know."""

    def __init__(
        self,
        chain: Chain,
        *,
        on_held: Callable[[StoredEvent], None],
        on_left: Callable[[str, str], None],
        on_granted: Callable[[Granted, int], None],
    ) -> None:
        """`on_held`: a job waits. `on_left`: one gave back slots, or waits no more. `on_granted`: another granted."""
        self._chain = chain
        self._on_held = on_held
        self._on_left = on_left
        self._on_granted = on_granted
        self._spill = DiskSpill()
        self.granter = Granter(self._spill)
        self.position = 0  #: stream sequence of the last event that was read
        self.folded = 0  #: how many were
        self.began = 0  #: the ledger's last stream sequence when this began
        self._ran: set[tuple[str, str]] = set()  # jobs that wait, and may have run before
        self._queues: dict[str, bool] = {}  # those that jobs waited in; whether they may be given jobs
        self._fair_limits: dict[str, str] = {}  # by those queues
        self._fair: set[str] = set()  # those of them whose jobs wait for a fair order
        self._paused: dict[str, QueueState] = {}
        self._is_new = True  # a queue was heard of since `see`
        self._seen = Fleet()

    def close(self) -> None:
        """Let go of what was put aside."""
        self._spill.close()

    def is_first(self, queue: str, job: str) -> bool:
        """Whether a job that waited never ran before, as far as is known; asked once, when it is granted."""
        if (queue, job) in self._ran:
            self._ran.discard((queue, job))
            return False
        return True

    def fold(self, message: Message) -> None:
        """Fold the next message; it must be given only once."""
        sequence = self.position = message.stream_sequence
        self.folded += 1
        if isinstance(message, StoredEvent):
            self._fold_job(message)
            return
        kind = aggregate_of(message.subject)
        if isinstance(message, Unreadable):
            if kind == FLOW.name:
                self._chain.passed(sequence)
        elif kind == FLOW.name:
            event = self._chain.heard(message)
            if isinstance(event, Granted):
                self.granter.granted(event, sequence)
                self._on_granted(event, sequence)
        elif kind == LIMIT.name:
            self.granter.limit(LIMIT.decode(message), sequence)
        elif kind == QUEUE.name:
            self._fold_queue(message)
        self.granter.through = sequence

    def wait(self, job: Job) -> None:
        """Take in a job that is held, where its `held` is not in the ledger any more."""
        order = job.order
        line = (PRIORITIES.index(order.priority), job.queue, order.fair, order.limits)
        self._note(job.queue, job.id, order.limits, is_new=False)
        self.granter.wait((job.queue, job.id), line, job.wait_sequence, is_new=False)

    def _fold_queue(self, message: Message) -> None:
        (queue,) = QUEUE.key_in(message.subject)
        state = QUEUE.evolve(None, QUEUE.decode(message), message.stream_sequence)
        self._paused.pop(queue, None)
        if state.paused:
            self._paused[queue] = state
        self._is_new = True

    def _fold_job(self, stored: StoredEvent) -> None:
        event = stored.event
        if isinstance(event, Held):
            is_new = event.cause == "new"
            if not is_new:
                self._left(event)
            self.granter.job(event, stored.stream_sequence)
            if event.limits:
                self._note(event.queue, event.job, event.limits, is_new=is_new)
                self._on_held(stored)
        elif isinstance(event, Carried):
            self.granter.job(event, stored.stream_sequence)
            if event.job_state.state == "held":
                self._note(event.queue, event.job, event.job_state.order.limits, is_new=False)
        else:
            self._left(event)
            self.granter.job(event, stored.stream_sequence)

    def _left(self, event: JobEvent) -> None:
        """Forget what was known of a job that waited or held slots."""
        self._ran.discard((event.queue, event.job))
        self._on_left(event.queue, event.job)

    def _note(self, queue: str, job: str, limits: tuple[str, ...], *, is_new: bool) -> None:
        """Take note of the queue of a job that waits, and of whether it may have run before."""
        fair = self._fair_limits.get(queue)
        if fair is None:
            fair = self._fair_limits[queue] = f"{_FAIR}{queue}"
            self._queues[queue] = self._is_new = True
        if fair in limits and queue not in self._fair:
            self._fair.add(queue)
            self._is_new = True
        if not is_new:
            self._ran.add((queue, job))

    def see(self, fleet: Fleet, now: datetime) -> None:
        """Let jobs be granted in the queues that living workers serve and that are not paused, and in no others."""
        if not self._is_new and not self._paused and fleet is self._seen:
            return
        self._is_new, self._seen = False, fleet
        for queue, is_open in self._queues.items():
            state = self._paused.get(queue)
            may = queue in fleet.served and not (state is not None and state.is_paused(now))
            if may != is_open:
                self._queues[queue] = may
                (self.granter.open if may else self.granter.close)(queue)
        for queue in self._fair:
            if queue in fleet.served:
                self.granter.offer(f"{_FAIR}{queue}", Terms(slots=_READY * fleet.served[queue]))

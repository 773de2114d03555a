"""What a job waits for, in a sentence, with the event that proves it and what a person can do about it.

`explain` is pure: it is given the job and the facts about its surroundings that `find_facts` gathers.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Final, assert_never

import msgspec

from jobledger.audit.trail_words import count
from jobledger.audit.why_held import HeldFacts, explain_held
from jobledger.audit.why_run import ChildNow, Moment, RunWait, explain_paused, run_waits
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import KeyUnavailableError, PermissionRefusedError
from jobledger.ledger.model.event_words import error_words
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.seals import owner_of
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.model.unique import is_held, key_of, until_words
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.leases import WorkerInfo, task_word
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.nats.pauses import queue_state
from jobledger.ledger.nats.task_book import TaskEntry, find_task
from jobledger.ledger.reruns.repairs import may_mend
from jobledger.ledger.timers import deadline_at
from jobledger.ledger.unique.holders import Holder, find_holder

_STEPS_SHOWN_MAX: Final = 3
_ERROR_MAX: Final = 300
_SECONDS_IN: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


class PausedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that hands out nothing for a time."""

    stream: str
    consumer: str
    until: str  #: the end of the pause, as the server writes it


class LockWait(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that the code of an attempt waits for, as its worker said with the last renewal of its lease."""

    scope: str
    lock: str
    holder: str  #: the process that holds it; "" if it is free by now
    lives: bool  #: whether that process has a lease


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a job at a moment."""

    now: datetime
    is_past: bool = False  #: `now` is a past moment: leases and consumers of that time are not known
    holder: WorkerInfo | None = None  #: the lease of the worker that runs it, if it lives
    lock: LockWait | None = None  #: the lock that the running attempt waits for, if any
    workers: tuple[WorkerInfo, ...] = ()  #: workers with living leases that serve its queue
    backlog: int | None = None  #: dispatches of its queue and priority not yet delivered; None: no consumer
    delivered: int = 0  #: stream sequence up to which that consumer has delivered
    announced: TaskEntry | None = (
        None  #: the newest announcement of its task, if no living worker of the queue has that task
    )
    master: str = (
        ""  #: the master key that opens the key of the job's owner; "": it has none, or it is not known
    )
    paused: PausedConsumer | None = None  #: that consumer, if it is paused although its queue is not
    queue: QueueState = QueueState()  #: whether its queue is paused
    held: HeldFacts | None = None  #: for a held job: its limits, and its place among those that wait
    key: Holder | None = None  #: its unique key as it is now, and the job that took it last
    key_elsewhere: bool = False  #: the asker may not see the job that holds the key
    children: dict[
        str, tuple[ChildNow, ...]
    ] = {}  #: for a run that waits for children: some open ones, by step key


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    status: str
    sentence: str
    since: datetime
    event_sequence: int  #: stream sequence of the event that proves it
    hint: str = ""  #: a command that would change it; over HTTP the request that does the same
    held: HeldFacts | None = None  #: for a held job: its limits at this moment
    unique: str = ""  #: for a unique job: which job holds its key, and how long
    waits: tuple[RunWait, ...] = ()  #: for a paused run: each thing that it waits for


async def find_facts(ledger: Ledger, job: Job) -> Facts:
    """Gather what `explain` needs from leases, queue, consumer, announcements, lock and key; not `held` and `children`.

    Raises: UnreachableError.
    """
    holder = None
    if job.running_attempt is not None:
        holder = await ledger.leases.find(job.running_attempt.worker)
    workers: tuple[WorkerInfo, ...] = ()
    announced, backlog, delivered, paused, master = None, None, 0, None, ""
    queue = QueueState()
    if job.state in (JobState.QUEUED, JobState.HELD):
        queue = await queue_state(ledger.log, job.queue)
    if job.state is JobState.QUEUED:
        alive = [info for info in await ledger.leases.all() if not info.stopped]
        workers = tuple(info for info in alive if job.queue in info.queues)
        if not _have_task(job, workers):
            with contextlib.suppress(PermissionRefusedError):
                announced = await find_task(ledger.inbox, ledger.names, job.task)
        if job.order.key:
            master = await _master(ledger, job.order.key)
        consumer = ledger.names.consumer(job.queue, job.order.priority)
        info = await find_consumer(ledger.inbox, ledger.names.ledger_stream, consumer)
        if info is not None:
            backlog, delivered = info.pending, info.delivered.stream_sequence
            paused = _pause(info, ledger.names.ledger_stream)
    return Facts(
        now=ledger.clock.now(),
        holder=holder,
        lock=await _lock_wait(ledger, job, holder),
        workers=workers,
        announced=announced,
        backlog=backlog,
        delivered=delivered,
        master=master,
        paused=paused,
        queue=queue,
        key=None if not job.order.unique else await find_holder(ledger.log, key_of(job)),
    )


async def _master(ledger: Ledger, key_id: str) -> str:
    """Return the name of the master key that opens an owner's key; "" if it is not known."""
    if not isinstance(ledger.keys, OwnerKeys):
        return ""
    with contextlib.suppress(PermissionRefusedError, KeyUnavailableError):
        found = await ledger.keys.entry(owner_of(key_id))
        return "" if found is None else found.entry.master
    return ""


async def _lock_wait(ledger: Ledger, job: Job, worker: WorkerInfo | None) -> LockWait | None:
    """Return the lock that a running job waits for. Raises: UnreachableError."""
    name = None if worker is None else worker.waits.get(f"{job.queue}/{job.id}")
    if name is None:
        return None
    scope, _, lock = name.partition("/")
    state = LOCK.view(*await end_of_chain(ledger.log, LOCK.chain(ledger.names, scope, lock))).state
    if state is None or not state.is_held:
        return LockWait(scope=scope, lock=lock, holder="", lives=False)
    lives = await ledger.leases.find(state.holder) is not None
    return LockWait(scope=scope, lock=lock, holder=state.holder, lives=lives)


def _pause(info: ConsumerInfo, stream: str) -> PausedConsumer | None:
    if not info.paused:
        return None
    return PausedConsumer(
        stream=stream, consumer=info.name, until=str(info.config.get("pause_until", "it is resumed"))
    )


def explain(job: Job, facts: Facts) -> Why:
    """Say what the job waits for, or why it waits for nothing."""
    waits: tuple[RunWait, ...] = ()

    def told(at: datetime) -> str:
        return _told(at, facts)

    match job.state:
        case JobState.QUEUED:
            sentence, hint = _queued(job, facts)
        case JobState.RUNNING:
            sentence, hint = _running(job, facts)
        case JobState.RETRY_WAIT:
            sentence, hint = _retry_wait(job, facts), f"jobledger jobs retry {job.id}"
        case JobState.SCHEDULED:
            sentence, hint = f"it is not due before {_moment(job, facts)}", f"jobledger jobs retry {job.id}"
        case JobState.HELD:
            sentence, hint = _held(job, facts)
        case JobState.WAITING | JobState.PAUSED:
            waits = run_waits(job, facts.children, told)
            sentence, hint = explain_paused(job, waits, told)
        case JobState.DEAD_LETTERED:
            error = "" if job.error is None else f" ({error_words(job.error)[:_ERROR_MAX]})"
            more, hint = _after_death(job)
            sentence = (
                f"it waits for a person: it is a dead letter, {_DEAD[job.dead_reason or '']}{error}{more}"
            )
        case JobState.COMPLETED:
            sentence, hint = f"it waits for nothing: attempt {job.attempts_count} completed it", ""
        case JobState.CANCELLED:
            reason = f" ({job.cancel_reason})" if job.cancel_reason else ""
            sentence, hint = f"it waits for nothing: it was cancelled{reason}", ""
        case JobState.DISCARDED:
            sentence, hint = "it waits for nothing: a person gave it up", ""
        case _:
            assert_never(job.state)
    return Why(
        status=job.state.value,
        sentence=f"{sentence}{_deadline(job, told)}",
        since=job.updated_at,
        event_sequence=job.claim_epoch or job.wait_sequence or job.last_sequence,
        hint=_hint_now(job, facts, hint),
        held=facts.held,
        unique=_unique(job, facts),
        waits=waits,
    )


def in_its_queue(why: Why, job: Job) -> Why:
    """Return the answer with commands that name the job's queue too, for an id that another queue may have as well."""

    def named(hint: str) -> str:
        words = hint.split()
        is_its = words[1:2] in (["jobs"], ["dlq"]) and words[3:4] == [job.id] and "--queue" not in words
        return f"{hint} --queue {job.queue}" if is_its else hint

    waits = tuple(msgspec.structs.replace(each, hint=named(each.hint)) for each in why.waits)
    return msgspec.structs.replace(why, hint=named(why.hint), waits=waits)


def _deadline(job: Job, moment: Moment) -> str:
    """Return when its deadline cancels a run; "" without a deadline or once its cancellation was requested."""
    at = None if job.cancel_requested else deadline_at(job)
    return "" if at is None else f"; if it has not ended by its deadline, {moment(at)}, it is cancelled"


def _hint_now(job: Job, facts: Facts, hint: str) -> str:
    """Return the command to type: "" for a past moment, since a command acts on the job as it is now."""
    if facts.is_past:
        return ""
    is_late = job.due_at is not None and job.due_at <= facts.now and job.state is not JobState.PAUSED
    return "jobledger doctor" if is_late else hint  # it is due, and no timer fired


def _unique(job: Job, facts: Facts) -> str:
    key = None if facts.key is None else facts.key.key.state
    if facts.key is None or key is None:
        return ""
    if not is_held(key, facts.key.chain.job, facts.now):
        return "no job holds its key: another one of its kind would be made"
    if facts.key_elsewhere:
        return "another job holds its key"
    if key.owner != JobRef(queue=job.queue, job_id=job.id):
        return f"job {key.job} in queue {key.queue} holds its key {until_words(key.until, key.expires_at)}"
    return f"it holds its key {until_words(key.until, key.expires_at)}: no other one of its kind is made"


_DEAD: Final = {
    "exhausted": "its attempts are used up",
    "max_deliver": "it was delivered again and again without ever coming to an outcome",
    "rejected": "it was given up without another try",
    "invalid": "its input does not fit its task",
    "diverged": "its code asks for something else than is recorded of it: deploy code that fits, then requeue it",
    "": "given up",
}


def _queued(job: Job, facts: Facts) -> tuple[str, str]:
    if facts.is_past:
        return (
            f"it stood in queue {job.queue} ({job.order.priority}); which workers lived then is not known",
            "",
        )
    if facts.queue.is_paused(facts.now):
        return _queue_paused(job, facts)
    start = f"jobledger worker --app ... --queue {job.queue}"
    if not facts.workers:
        return f"no worker serves queue {job.queue}{_last_word(facts)}{_going_back(job)}", start
    if not _have_task(job, facts.workers):
        serving = f"{count(len(facts.workers), 'worker')} {'serves' if len(facts.workers) == 1 else 'serve'}"
        lacking = f"a task {job.task}{_last_word(facts)}"
        if job.order.version:
            lacking = f"version {job.order.version} of workflow {job.task}, with which this run began"
        return f"{serving} queue {job.queue}, none has {lacking}", start
    if facts.master and not any(
        info.masters is None or facts.master in info.masters for info in facts.workers
    ):
        return (
            f"its values are sealed, and no worker of queue {job.queue} has the master key {facts.master}",
            f"{start} --master-key file:...",
        )
    if facts.paused is not None:
        return (
            f"somebody paused consumer {facts.paused.consumer} until {facts.paused.until}: before that "
            f"no worker is given a job of queue {job.queue} and priority {job.order.priority}"
        ), f"nats consumer resume {facts.paused.stream} {facts.paused.consumer}"
    return _in_line(job, facts, start)


def _in_line(job: Job, facts: Facts, start: str) -> tuple[str, str]:
    if facts.backlog is not None and job.dispatch_sequence > facts.delivered:
        running = sum(info.running or 0 for info in facts.workers)
        return (
            f"it stands in queue {job.queue} ({job.order.priority}) with {facts.backlog} not yet delivered; "
            f"{count(len(facts.workers), 'worker')} there run {running} jobs now{_going_back(job)}"
        ), start
    if facts.backlog is None:
        return (
            f"queue {job.queue} has no consumer of priority {job.order.priority} yet: its worker is starting",
            "jobledger workers list",
        )
    return (
        "it was delivered to a worker that has not started it: it is about to, or the delivery comes again "
        "within the ack wait"
    ), "jobledger workers list"


def _queue_paused(job: Job, facts: Facts) -> tuple[str, str]:
    said = f"queue {job.queue} is {facts.queue.words()}; no worker is given a job of it before that ends"
    return said, f"jobledger queues resume {job.queue}"


def _held(job: Job, facts: Facts) -> tuple[str, str]:
    if facts.queue.is_paused(facts.now):
        return _queue_paused(job, facts)
    if facts.held is None:
        return f"it waits for its limits ({', '.join(job.order.limits) or 'none named'}) to admit it", ""
    return explain_held(job, facts.held, shown_time)


def _have_task(job: Job, workers: tuple[WorkerInfo, ...]) -> bool:
    """Return whether one of the workers has the job's task, or may have it, since it does not name its tasks."""
    wanted = task_word(job.task, job.order.version)
    return any(info.tasks is None or wanted in info.tasks for info in workers)


def _going_back(job: Job) -> str:
    """Say that a run was cancelled, and what comes before its end."""
    if not job.cancel_requested:
        return ""
    reason = f" ({job.cancel_reason})" if job.cancel_reason else ""
    return f"; it was cancelled{reason}, and ends once a worker has run the undos that it registered"


def _after_death(job: Job) -> tuple[str, str]:
    """Return a further clause about a dead letter, and the command that gives it another try."""
    if not _fails_by_children(job):
        return "", f"jobledger dlq requeue {job.id}"
    said = "; requeued it fails again, since how its children ended is recorded"
    if not may_mend(job):
        return f"{said}: enqueue a new one", ""
    said += ": a rerun makes those new that did not complete, and copies the others"
    return said, f"jobledger jobs rerun {job.id} --failed"


def _fails_by_children(job: Job) -> bool:
    """Return whether a dead letter fails again once it is requeued, since the ends of its children are recorded.

    When a run died with its workers, its open children were cancelled with it: a step that waits for them fails.
    """
    if job.error is None:
        return False
    if job.error.type == "ChildFailedError":
        return any(step.failed for step in job.steps.values())
    waiting = (step for step in job.steps.values() if step.state == "started" and step.order is not None)
    return job.error.kind == "lost" and any(
        step.failed and step.order is not None and step.order.on_failure == "stop" for step in waiting
    )


def _last_word(facts: Facts) -> str:
    said = facts.announced
    if said is None:
        return ""
    return f"; worker {said.worker} was the last to start with task {said.name}, at {shown_time(said.announced_at)}"


def _running(job: Job, facts: Facts) -> tuple[str, str]:
    attempt = job.attempts[-1]
    ran = _duration((facts.now - attempt.started_at).total_seconds())
    asked = _in_steps(job) + _asked(job)
    if facts.is_past:
        said = f"attempt {attempt.number} ran on worker {attempt.worker} for {ran}{asked}"
        return f"{said}; whether that worker lived then is not known", ""
    if facts.holder is None:
        return (
            f"attempt {attempt.number} runs nowhere any more: the lease of worker {attempt.worker} is over{asked}; "
            f"the next worker that is delivered it takes it over"
        ), "jobledger workers list"
    hint = f"jobledger jobs cancel {job.id}"
    if job.cancel_requested or job.pause_requested:  # a person can only see how far it is
        hint = f"jobledger jobs show {job.id}{' --tree' if job.steps else ''}"
    said = f"attempt {attempt.number} runs on worker {attempt.worker} for {ran}{asked}"
    return f"{said}{'' if facts.lock is None else _lock(facts.lock)}", hint


def _lock(lock: LockWait) -> str:
    """Say which lock an attempt waits for, and who holds it."""
    waits = f", and waits for lock {lock.scope}/{lock.lock}"
    if not lock.holder:
        return f"{waits}, which is free by now"
    gone = "" if lock.lives else ", whose lease is over: whoever waits takes it over"
    return f"{waits}, which process {lock.holder} holds{gone}"


def _in_steps(job: Job) -> str:
    """Name the steps of a run that it has begun."""
    begun = [key for key, step in job.steps.items() if step.state == "started"]
    more = ", ..." if len(begun) > _STEPS_SHOWN_MAX else ""
    return f", in step {', '.join(begun[:_STEPS_SHOWN_MAX])}{more}" if begun else ""


def _asked(job: Job) -> str:
    if job.cancel_requested:
        return ", and was asked to end"
    return ", and was asked to pause" if job.pause_requested else ""


def _retry_wait(job: Job, facts: Facts) -> str:
    attempt = job.attempts[-1] if job.attempts else None
    if attempt is None or attempt.state != "failed":
        state = "waits" if attempt is None else f"was {attempt.state}"
        return f"attempt {job.attempts_count} {state}; it goes on at {_moment(job, facts)}"
    error = "" if attempt.error is None else f" ({attempt.error.type}: {attempt.error.message[:200]})"
    return f"attempt {attempt.number} failed{error}; it is tried again at {_moment(job, facts)}"


def _moment(job: Job, facts: Facts) -> str:
    return "no time that is known" if job.due_at is None else _told(job.due_at, facts)


def _told(at: datetime, facts: Facts) -> str:
    left = (at - facts.now).total_seconds()
    if left > 0:
        return f"{shown_time(at)} (in {_duration(left)})"
    asked = "" if facts.is_past else ": is a worker running its timers?"  # whether one ran then is not known
    return f"{shown_time(at)} (due for {_duration(-left)}{asked})"


def _duration(seconds: float) -> str:
    for unit, length in _SECONDS_IN:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.1f} s"

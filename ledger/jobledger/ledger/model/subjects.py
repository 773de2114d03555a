"""Names on the wire: streams, subjects, consumers; built from validated tokens, and parsed back.

A subject names the aggregate, then the event: `ledger.job.<queue>.<job_id>.<event>`. After `queued` follows the
priority; after `completed` follow `child` and the parent's id if the job is a run's child, and `limited` if it has
limits: so a reader of such ends gets no others. Every conditional append of a chain names the chain's filter,
`ledger.job.<queue>.<job_id>.>`. Source: ADR 001.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidTokenError,
    MalformedEventError,
)
from jobledger.ledger.model.events import PRIORITIES, Completed, JobEvent, Priority, Queued, event_type
from jobledger.ledger.model.lifecycle import TIMED_WAITS

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", flags=re.ASCII)

#: The queue of deliveries of webhooks. No event of it is ever delivered.
DELIVERIES_QUEUE: Final = "webhooks-out"
#: The queue of acts of a gateway on many jobs at once.
ACTS_QUEUE: Final = "jobledger-acts"
#: Queues of jobs that nobody enqueued: figures and lists of the fleet leave them out, unless named. The queue
#: `jobledger` is not among them, since people begin its graphs and batches.
INNER_QUEUES: Final = (DELIVERIES_QUEUE, ACTS_QUEUE)
#: Tasks of the ledger's own that nobody may name: only a graph, a batch, an act or a check makes their jobs. `deliver`
#: is not among them, since applications have tasks of that name, in queues of their own.
INNER_TASKS: Final = frozenset({"run_graph", "run_stored_graph", "run_batch", "bulk_act", "verify_ledger"})
#: Beginning of the names of tasks that call the hooks of schedules. Their input has the id and the order of the job to
#: make.
HOOKS_TASK: Final = "hooks_of_"
_OWN_QUEUES: Final = ("jobledger", DELIVERIES_QUEUE)

TIMERS_CONSUMER_PREFIX: Final = "timers_"
CHILDREN_CONSUMER: Final = "children"
SUBSCRIPTION_CONSUMER_PREFIX: Final = "events_"
#: Name part of consumers that read a queue's work minutes later, to find jobs that no worker is offered any more.
RECONCILER_CONSUMER_PREFIX: Final = "reconcile_"

#: The last words, as filters, of the subjects of types with more words than the type itself; no filter overlaps
#: another.
_LEAVES: Final = {
    "queued": ("queued.*",),
    "completed": (
        "completed",
        "completed.limited",
        "completed.child.*",
        "completed.child.*.limited",
    ),
}

_AGGREGATE_TOKENS: Final = 3  # the root, the aggregate, and the rest as one


def check_token(field: str, value: object) -> str:
    """Return `value` if it can be one token of a subject.

    Raises: InvalidTokenError, naming `field`, for anything but 1 to 64 of A-Z a-z 0-9 _ and -.
    """
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:
        raise InvalidTokenError(field, value)
    return value


def is_own_queue(queue: str) -> bool:
    """Return whether a queue is for the ledger's own jobs."""
    return queue.startswith(_OWN_QUEUES)


def check_users_queue(queue: object) -> str:
    """Return the name of a queue that an application's jobs may use.

    Raises: InvalidTokenError; InvalidInputError for a queue of the ledger's own jobs.
    """
    name = check_token("queue", queue)
    if is_own_queue(name):
        raise InvalidInputError(
            f"queue {name!r} is for the ledger's own jobs: choose a name that does not begin with "
            f"{' or '.join(_OWN_QUEUES)}"
        )
    return name


def check_users_task(task: object) -> str:
    """Return the name of a task that callers may name when they add jobs, or define what adds them.

    Raises: InvalidTokenError; InvalidInputError for a task of the ledger's own.
    """
    name = check_token("task name", task)
    if name in INNER_TASKS or name.startswith(HOOKS_TASK):
        raise InvalidInputError(f"task {name} is one of the ledger's own: name a task of yours")
    return name


def aggregate_of(subject: str) -> str:
    """Return the name of the aggregate in a ledger subject; "" for a text in another form."""
    tokens = subject.split(".", 2)
    return tokens[1] if len(tokens) == _AGGREGATE_TOKENS else ""


def leaves_of(event: str) -> tuple[str, ...]:
    """Return the last words of the subjects of one type of a job's events, as filters that match all of them."""
    return _LEAVES.get(event, (event,))


#: Last words of the subjects of most events that end a job for good; those of a run's child name its parent, too.
ENDINGS: Final = tuple(
    f".{leaf}" for kind in ("completed", "cancelled") for leaf in leaves_of(kind) if "*" not in leaf
)


def fits(subject: str, pattern: str) -> bool:
    """Return whether a filter of the server's, with `*` and a last `>`, lets a subject through."""
    words, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        words, rest = words[: len(wanted)], len(words) - len(wanted)
        if rest < 1:
            return False
    return len(words) == len(wanted) and all(
        want in ("*", word) for word, want in zip(words, wanted, strict=True)
    )


def completed_leaf(event: Completed) -> str:
    """Return the last words of the subject of the end of a job that completed."""
    leaf = "completed" if event.member is None else f"completed.child.{event.member.job}"
    return f"{leaf}.limited" if event.limited else leaf


def is_token(value: str) -> bool:
    """Return whether `value` can be one token of a subject."""
    return _TOKEN.fullmatch(value) is not None


def environment_of(stream: str) -> str | None:
    """Return the environment whose ledger a stream of this name is, "" for the plain one; None for any other stream."""
    prefix, separator, rest = stream.rpartition("_")
    return prefix.lower() if rest == "LEDGER" and bool(prefix) == bool(separator) else None


def filter_pattern(subject: str) -> re.Pattern[str]:
    """Return the pattern of a subject filter: `*` matches one token, a last `>` one or more."""
    patterns = {"*": r"[^.]+", ">": r".+"}
    return re.compile(r"\.".join(patterns.get(part) or re.escape(part) for part in subject.split(".")))


class JobRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The name of one job's chain."""

    queue: str
    job_id: str


class LockRef(msgspec.Struct, frozen=True, kw_only=True):
    """The name of one lock's chain."""

    scope: str  #: what kind of thing is locked: "account", "document", "global"
    lock_id: str


class ParsedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """The fields in the subject of a job's event; the event's body must agree."""

    queue: str
    job_id: str
    event: str
    priority: str | None


class Names(msgspec.Struct, frozen=True):
    """Every name one environment uses, so that several can share an account."""

    environment: str = ""  #: "" is the plain form; "staging" gives `staging_ledger.>` and `STAGING_LEDGER`
    jobs_root: str = ""  #: beginning of the subject of every job event; follows from the environment

    def __post_init__(self) -> None:
        """Check the environment's name.

        Raises: InvalidTokenError, ConfigurationError for upper case.
        """
        if self.environment:
            check_token("environment", self.environment)
            if self.environment != self.environment.lower():  # stream names are its upper case
                raise ConfigurationError(f"environment must be lower case, got {self.environment!r}")
        force_setattr(self, "jobs_root", f"{self.ledger_root}.job.")

    def _subject(self, root: str) -> str:
        return f"{self.environment}_{root}" if self.environment else root

    def _stream(self, name: str) -> str:
        return f"{self.environment.upper()}_{name}" if self.environment else name

    @property
    def ledger_root(self) -> str:
        """First token of every ledger subject."""
        return self._subject("ledger")

    @property
    def ledger_stream(self) -> str:
        """The stream of all events, from which everything else is derived."""
        return self._stream("LEDGER")

    @property
    def workers_bucket(self) -> str:
        """The key-value bucket of worker leases."""
        return self._stream("WORKERS")

    @property
    def tasks_bucket(self) -> str:
        """The key-value bucket of the tasks that workers announce."""
        return self._stream("TASKS")

    @property
    def lanes_bucket(self) -> str:
        """The key-value bucket with the sequence up to which each lane was settled."""
        return self._stream("LANES")

    @property
    def access_bucket(self) -> str:
        """The key-value bucket with the last use of each key of the gateway."""
        return self._stream("ACCESS")

    @property
    def keys_bucket(self) -> str:
        """The key-value bucket of the keys of owners, each wrapped by a master key."""
        return self._stream("KEYS")

    @property
    def payloads_bucket(self) -> str:
        """The object store of inputs above the inline limit; kept as long as the ledger."""
        return self._stream("PAYLOADS")

    @property
    def results_bucket(self) -> str:
        """The object store of results above the inline limit; they expire."""
        return self._stream("RESULTS")

    @property
    def tables_bucket(self) -> str:
        """The object store of the tables of runs; they expire."""
        return self._stream("TABLES")

    @property
    def logs_bucket(self) -> str:
        """The key-value bucket of the logs of attempts, which expire."""
        return self._stream("LOGS")

    @property
    def bodies_bucket(self) -> str:
        """The object store of bodies of webhooks; each has its own time to be kept."""
        return self._stream("BODIES")

    @property
    def advisories_stream(self) -> str:
        """The stream of the server's advisories on dispatches whose deliveries are used up."""
        return self._stream("ADVISORIES")

    @property
    def dlq_stream(self) -> str:
        """The stream of copies of dead letters, for alerting."""
        return self._stream("DLQ")

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream that an environment may have, the ledger first; some are created only if needed."""
        buckets = (
            self.workers_bucket,
            self.tasks_bucket,
            self.lanes_bucket,
            self.access_bucket,
            self.logs_bucket,
            self.keys_bucket,
        )
        stores = (self.payloads_bucket, self.results_bucket, self.tables_bucket, self.bodies_bucket)
        return (
            self.ledger_stream,
            self.timers_stream,
            self.advisories_stream,
            self.dlq_stream,
            *(f"KV_{each}" for each in buckets),
            *(f"OBJ_{each}" for each in stores),
        )

    @property
    def all_events(self) -> str:
        """The filter that matches every event of the ledger."""
        return f"{self.ledger_root}.>"

    def chain(self, ref: JobRef) -> str:
        """Return the filter of one job's chain: the same string for every append to that chain."""
        return f"{self.jobs_root}{ref.queue}.{ref.job_id}.>"

    def chain_of(self, event: JobEvent) -> str:
        """Return the filter of the chain that `event` belongs to: like `chain`, without a `JobRef`."""
        return f"{self.jobs_root}{event.queue}.{event.job}.>"

    def of_type(self, ref: JobRef, event: str) -> str:
        """Return the subject of one job's events of one type; those of `queued` and `completed` may have more words."""
        return f"{self.ledger_root}.job.{ref.queue}.{ref.job_id}.{event}"

    def all_of_type(self, event: str) -> str:
        """Return the filter of every job's events of one type; for `queued` and `completed` also with more words."""
        return f"{self.ledger_root}.job.*.*.{event}"

    @property
    def ends_of_children(self) -> tuple[str, ...]:
        """The filters of events that concern runs and their children, without completions of other jobs."""
        ends = ("completed.child.>", "cancelled", "dead_lettered", "discarded", "paused")
        return tuple(self.all_of_type(end) for end in ends)

    @property
    def all_dispatches(self) -> str:
        """The filter of every work item of every queue."""
        return f"{self.ledger_root}.job.*.*.queued.*"

    def chains_of_id(self, job_id: str) -> str:
        """Return the filter of every chain with this job id, whatever its queue."""
        return self.chains(job_id, None)

    def chains(self, job_id: str, queue: str | None) -> str:
        """Return the filter of the chain with this job id in a queue, or of those in all queues."""
        return f"{self.ledger_root}.job.{queue or '*'}.{job_id}.>"

    def lock_hint(self, ref: LockRef) -> str:
        """Return the core subject of "look at this lock now"."""
        return f"{self._subject('hint')}.lock.{ref.scope}.{ref.lock_id}"

    def event(self, event: JobEvent) -> str:
        """Return the subject under which `event` is stored."""
        if isinstance(event, Queued):
            return f"{self.jobs_root}{event.queue}.{event.job}.queued.{event.priority}"
        if isinstance(event, Completed) and (event.limited or event.member is not None):
            leaf = completed_leaf(event)
        else:
            leaf = event_type(event)
        return f"{self.jobs_root}{event.queue}.{event.job}.{leaf}"

    def dispatches(self, queue: str, priority: Priority) -> str:
        """Return the filter of a queue's work items of one priority."""
        return f"{self.ledger_root}.job.{queue}.*.queued.{priority}"

    def consumer(self, queue: str, priority: Priority) -> str:
        """Return the durable consumer that hands out a queue's work items of one priority."""
        return f"work_{queue}_{priority}"

    @property
    def timers_stream(self) -> str:
        """The stream with a message for each future moment; rebuilt from the ledger when it is lost."""
        return self._stream("TIMERS")

    @property
    def all_timers(self) -> str:
        """The filter that matches every subject of the timers' stream."""
        return f"{self._subject('timer')}.>"

    @property
    def timers_set(self) -> str:
        """The filter of the timers that are set and have not fired."""
        return f"{self._subject('timer')}.at.>"

    @property
    def timers_due(self) -> str:
        """The filter of the timers that have fired."""
        return f"{self._subject('timer')}.due.>"

    def timer_at(self, chain: str, wait_sequence: int | str) -> str:
        """Return the subject of one wait's timer; the next wait has another one, so no late copy replaces its timer.

        `chain`: the waiting `job.<queue>.<job_id>` or `schedule.<name>`. The deadline of a run, which has only one,
        has the word `deadline` in the place of the sequence.
        """
        return f"{self._subject('timer')}.at.{chain}.{wait_sequence}"

    def timer_due(self, chain: str, wait_sequence: int | str) -> str:
        """Return the subject under which one wait's timer fires; `chain` as for `timer_at`."""
        return f"{self._subject('timer')}.due.{chain}.{wait_sequence}"

    @property
    def all_schedules(self) -> str:
        """The filter of every schedule's events."""
        return f"{self.ledger_root}.schedule.>"

    @property
    def timed_waits(self) -> tuple[str, ...]:
        """The filters of the events that may name a moment at which a job or a schedule goes on."""
        return (*(f"{self.ledger_root}.job.*.*.{event}" for event in TIMED_WAITS), self.all_schedules)

    def timers_consumer(self, timers_id: str) -> str:
        """Return the durable consumer that sets timers; each TIMERS stream has its own."""
        return f"{TIMERS_CONSUMER_PREFIX}{timers_id}"

    def subscription_consumer(self, name: str) -> str:
        """Return the durable consumer of a named subscription to events."""
        return f"{SUBSCRIPTION_CONSUMER_PREFIX}{name}"

    def ended_hint(self, inbox: str) -> str:
        """Return the core subject of "this job ended" for one client's inbox token."""
        return f"{self._subject('hint')}.ended.{inbox}"

    def cancel_hint(self, queue: str, job_id: str = "*") -> str:
        """Return the core subject of "somebody wants this running job to end"; of any job of the queue by default."""
        return f"{self._subject('hint')}.cancel.{queue}.{job_id}"

    def resume_hint(self, queue: str, job_id: str = "*") -> str:
        """Return the core subject of "this run has news" for a queue's workers; of any run of the queue by default."""
        return f"{self._subject('hint')}.resume.{queue}.{job_id}"

    def queue_hint(self, queue: str) -> str:
        """Return the core subject of "somebody paused or resumed this queue"."""
        return f"{self._subject('hint')}.queue.{queue}"

    def progress_hint(self, ref: JobRef) -> str:
        """Return the core subject of a running job's reports of progress."""
        return f"{self._subject('hint')}.progress.{ref.queue}.{ref.job_id}"

    def parse(self, subject: str) -> ParsedSubject:
        """Split the subject of a stored job event.

        Raises: MalformedEventError for a subject that no event of this environment can have.
        """
        tokens = subject.split(".")
        parsed: ParsedSubject | None = None
        match tokens:
            case [self.ledger_root, "job", queue, job_id, "queued", priority] if priority in PRIORITIES:
                parsed = ParsedSubject(queue=queue, job_id=job_id, event="queued", priority=priority)
            case [self.ledger_root, "job", queue, job_id, "completed", *rest] if _is_completed(rest):
                parsed = ParsedSubject(queue=queue, job_id=job_id, event="completed", priority=None)
            case [self.ledger_root, "job", queue, job_id, event] if event != "queued":
                parsed = ParsedSubject(queue=queue, job_id=job_id, event=event, priority=None)
            case _:
                pass
        if parsed is None or not all(map(_TOKEN.fullmatch, tokens[2:])):
            raise MalformedEventError(f"{subject!r} is not the subject of a job event")
        return parsed


def _is_completed(rest: list[str]) -> bool:
    """Return whether these words may follow `completed` in a subject."""
    match rest:
        case [] | ["limited"] | ["child", _] | ["child", _, "limited"]:
            return True
        case _:
            return False


def first_leaf(priority: str, limits: Sequence[str], deadline_s: float | None) -> str:
    """Return the last words of the subject of the first event that `decisions` makes for a job due at once."""
    if deadline_s is not None:
        return "scheduled"
    return "held" if limits else f"queued.{priority}"

"""What can go wrong, as one tree; the branch says what the caller can do about it.

LedgerError
├── InvalidError              the request is wrong: mend it, nothing was changed
│   ├── ConfigurationError
│   ├── NoDataFolderError
│   ├── InvalidTokenError
│   ├── TaskDefinitionError
│   ├── UnknownTaskError
│   ├── InvalidInputError
│   └── PayloadTooLargeError
├── NotFoundError             there is nothing of that name
│   ├── JobNotFoundError
│   ├── TaskNotFoundError
│   ├── LimitNotFoundError
│   ├── ScheduleNotFoundError
│   ├── OwnerNotFoundError
│   └── LedgerNotFoundError
├── RefusedError              well-formed, but not now or not here: nothing was changed
│   ├── AccessDeniedError
│   ├── AmbiguousIdError
│   ├── IllegalTransitionError
│   ├── JobExistsError
│   ├── ScheduleExistsError
│   ├── InputMismatchError
│   ├── StaleClaimError
│   ├── WrongSequenceError
│   ├── LockHeldError
│   ├── LockLostError
│   ├── LockReentryError
│   ├── LockTimeoutError
│   ├── UniqueKeyTakenError
│   ├── LedgerFullError
│   │   └── LedgerThrottledError
│   ├── LedgerClosedError
│   ├── ForeignLoopError
│   ├── StreamMismatchError
│   ├── JetStreamDisabledError
│   ├── PermissionRefusedError
│   ├── UnsupportedServerError
│   ├── PortInUseError
│   ├── ErasedError
│   ├── OwnerErasingError
│   ├── StoreInUseError
│   └── UnsafeFolderError
├── UnreachableError          no answer: the same call may succeed later
│   ├── ServerUnreachableError
│   ├── ServerStartError
│   ├── ServerBinaryMissingError
│   ├── KeyUnavailableError
│   └── AppendOutcomeUnknownError
├── CorruptLedgerError        what is stored cannot be trusted: stop and look
│   ├── MalformedEventError
│   ├── UnknownEventError
│   ├── PayloadMissingError
│   ├── SealBrokenError
│   └── SequenceGapError
└── OutcomeError              the job ended, or not in time, otherwise than the caller hoped
    ├── JobCancelledError
    ├── JobFailedError
    ├── ResultMismatchError
    └── ResultTimeoutError

Below the same root and branches are the errors of runs (`model.runs.errors`), of subscriptions
(`jobledger.ledger.subscriptions.errors`), and of exports and archives (`jobledger.audit.errors`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

#: The state of a large value: stored with the sha256 in the event, gone, or stored with another sha256.
PayloadState = Literal["stored", "gone", "differs"]


class LedgerError(Exception):
    """The root of every error raised by `jobledger.ledger`; its text is one sentence fit for a person."""


class InvalidError(LedgerError):
    """The request itself is wrong; nothing was sent."""


class ConfigurationError(InvalidError):
    """An option has a value that cannot work; the sentence names option, value and rule."""


class NoDataFolderError(InvalidError):
    """This user has no home folder, and no other place for our files was named."""

    def __init__(self) -> None:
        super().__init__(
            "this user has no home folder for its projection and other files: set XDG_DATA_HOME, or name each file"
        )


class InvalidTokenError(InvalidError):
    """A name that becomes part of a subject breaks the token rule.

    Raised at every entry, before anything is sent.
    """

    def __init__(self, field: str, value: object) -> None:
        self.field = field  #: which name: "queue", "job id", ...
        shown = repr(value)
        if len(shown) > 80:  # noqa: PLR2004 - one terminal line
            shown = f"{shown[:60]}... ({len(shown) - 2} characters)"
        super().__init__(
            f"{field} {shown} is not valid: use 1 to 64 characters out of A-Z a-z 0-9 _ and -",
        )


class TaskDefinitionError(InvalidError):
    """A function cannot be a task as it is written; the sentence says what to write instead.

    `@task` raises it for anything but a plain function. Annotations that JSON cannot hold are found when a worker or a
    command loads the task, and by the first enqueue.
    """


class UnknownTaskError(InvalidError):
    """No task of that name is registered in the modules that were loaded."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        listing = f"known tasks: {', '.join(known)}" if known else "no task is loaded"
        super().__init__(f"there is no task {name!r}; {listing}: load the module that defines it")


class InvalidInputError(InvalidError):
    """The input does not fit the task's signature, or is not JSON that every reader can hold."""


class PayloadTooLargeError(InvalidError):
    """An input or result is larger than the configured limit."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the {what} has {size_bytes:,} bytes and the limit is {limit_bytes:,}: "
            "store it elsewhere and pass a reference",
        )


class NotFoundError(LedgerError):
    """Nothing of that name exists in the ledger."""


class JobNotFoundError(NotFoundError):
    """The ledger holds no event of this job."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id!r} is in the ledger; `jobledger jobs list` shows those that are")


class TaskNotFoundError(NotFoundError):
    """No worker ever announced a task of that name; `near` are names like it."""

    def __init__(self, task: str, near: list[str]) -> None:
        self.task = task
        self.near = near
        meant = f": did you mean {' or '.join(near)}?" if near else ":"
        super().__init__(
            f"no worker has ever announced a task {task!r}{meant} a worker does that when it starts"
        )


class LimitNotFoundError(NotFoundError):
    """No limit of that name is defined."""

    def __init__(self, limit: str) -> None:
        self.limit = limit
        super().__init__(f"there is no limit {limit}: `jobledger limits list` shows those that are defined")


class ScheduleNotFoundError(NotFoundError):
    """The ledger knows no schedule of this name, or it was removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no schedule {name!r}; `jobledger schedules list` shows those that are")


class OwnerNotFoundError(NotFoundError):
    """No job of this ledger ever had this owner: there is no key."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        super().__init__(
            f"owner {owner} has no key: no job of this ledger had this owner, or the bucket of keys is another one"
        )


class LedgerNotFoundError(NotFoundError):
    """There is no ledger at this place; raised by `connect(create=False)`, which created nothing.

    Somebody deleted its stream, or environment or address name another place than intended.
    """

    def __init__(self, url: str, environment: str, others: list[str], more: str = "") -> None:
        """`url` without its password; `others`: environments with a ledger there; "": the one without a name."""
        self.url = url
        self.environment = environment
        self.others = others
        self.more = more  #: the caller's sentence on a ledger that was here before
        what = f"no ledger of environment {environment!r}" if environment else "no ledger"
        advice = "the first enqueue or worker makes it"
        if others:
            known = ", ".join(
                repr(each) if each else "one without an environment (give none)" for each in others
            )
            advice = f"ledgers that are there: {known}; choose one of these, or {advice}"
        super().__init__(f"there is {what} at {url}: {more or advice}")

    def with_more(self, more: str) -> LedgerNotFoundError:
        """Return the error with the caller's sentence on a ledger that was there, instead of its own advice."""
        return LedgerNotFoundError(self.url, self.environment, self.others, more)


class RefusedError(LedgerError):
    """The request is well-formed and was refused; nothing was changed."""


class AccessDeniedError(RefusedError):
    """The caller lacks the permission, or is bound to other queues or tasks."""


class AmbiguousIdError(RefusedError):
    """A prefix matches several jobs, or one id exists in several queues."""

    def __init__(self, prefix: str, matches: list[str]) -> None:
        self.prefix = prefix
        self.matches = matches
        shown = ", ".join(matches[:5]) + (", ..." if len(matches) > 5 else "")  # noqa: PLR2004
        super().__init__(
            f"{prefix!r} matches several jobs ({shown}): give more of the id, or the queue as well"
        )


class IllegalTransitionError(RefusedError):
    """The job is in a state in which this cannot be done to it, such as cancelling a job that has ended."""

    def __init__(self, job_id: str, state: str, command: str) -> None:
        self.job_id = job_id
        self.state = state
        self.command = command
        super().__init__(f"job {job_id} is {state}: it cannot {command}")


class JobExistsError(RefusedError):
    """A job of this id is already in this queue; `enqueue` answers with that job and `created=False`."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} exists already")


class ScheduleExistsError(RefusedError):
    """A schedule of this name exists and does something else; nothing was changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"schedule {name} exists and does something else (`jobledger schedules show {name}`): "
            "choose another name, or replace it with --replace"
        )


class InputMismatchError(RefusedError):
    """A job of this id exists with another input, or of another task; it stays as it is.

    Raised by every way to enqueue. Give the new job another id, or say `on_other_input="keep"` to get the existing job.
    `context.ledger.enqueue` raises it also for ids that it derived: make the same jobs in the same order in each
    attempt. It is also raised if somebody else made a job with such an id, and for a task with `Unique(for_s=...)` if
    a job of another task has the id of the period.
    """

    def __init__(
        self, job_id: str, queue: str, differing: list[str], parent_id: str = "", *, remedy: str = ""
    ) -> None:
        self.job_id = job_id  #: the job that exists
        self.queue = queue
        self.parent_id = parent_id  #: the job whose code enqueued without an id; "": none
        #: Names of the differing arguments, sorted; or only "task" for a job of another task, "parent" for somebody
        #: else's job.
        self.differing = differing
        self.number: int | None = None  #: the input's number in `enqueue_many`, from 0
        #: In `enqueue_many`: the first hundred further errors; each has its number.
        self.others: tuple[InputMismatchError, ...] = ()
        what = "for another task" if differing == ["task"] else f"with another input ({', '.join(differing)})"
        if remedy:
            super().__init__(f"job {job_id} in queue {queue} exists {what} and stays as it is: {remedy}")
        elif differing == ["parent"]:
            super().__init__(
                f"job {job_id} in queue {queue} exists, and job {parent_id} did not make it: give the jobs that it makes "
                "ids with .options(id=...)"
            )
        elif parent_id:
            super().__init__(
                f"job {job_id} in queue {queue} exists {what} than job {parent_id} "
                "gives it now: enqueue the same jobs in the same order in each attempt, or give each an id with "
                ".options(id=...)"
            )
        else:
            super().__init__(
                f"job {job_id} in queue {queue} exists {what} and stays as it is: give the new job another id, "
                'or on_other_input="keep" to get the job that exists'
            )


class StaleClaimError(RefusedError):
    """A worker acted under a claim that is no longer the job's; its outcome must be dropped."""

    def __init__(self, job_id: str, held_epoch: int, current_epoch: int) -> None:
        self.job_id = job_id
        self.held_epoch = held_epoch
        self.current_epoch = current_epoch  #: 0 when nobody holds the job
        super().__init__(f"job {job_id}: claim {held_epoch} is stale, the current one is {current_epoch}")


class WrongSequenceError(RefusedError):
    """A conditional append was decided on a view of the chain that is no longer the newest.

    Raised by `Log.append`; read the chain again and decide again.
    """

    def __init__(self, chain: str, expected: int) -> None:
        self.chain = chain
        self.expected = expected
        super().__init__(f"{chain} has moved past stream sequence {expected}")


class LockHeldError(RefusedError):
    """Somebody holds the lock and is not known to be dead; `Ledger.lock` waits instead of raising this."""

    def __init__(self, scope: str, lock_id: str, holder: str, fencing_number: int) -> None:
        self.holder = holder
        self.fencing_number = fencing_number
        super().__init__(f"lock {scope}/{lock_id} is held by {holder} since stream sequence {fencing_number}")


class LockLostError(RefusedError):
    """A lock was not held to the end: others may have worked on what it guards. Undo, or do it again.

    Raised by `HeldLock.check`, and at the end of a block that lost its lock.
    """

    def __init__(self, scope: str, lock_id: str, fencing_number: int, why: str) -> None:
        self.scope = scope
        self.lock_id = lock_id
        self.fencing_number = fencing_number  #: stale now: the guarded resource must refuse it
        super().__init__(f"lock {scope}/{lock_id} of fencing number {fencing_number} is lost: {why}")


class LockReentryError(RefusedError):
    """A task or thread asked for a lock that it holds itself: it would wait for itself."""

    def __init__(self, scope: str, lock_id: str) -> None:
        super().__init__(f"this task holds lock {scope}/{lock_id} already: hand on what it holds instead")


class LockTimeoutError(RefusedError):
    """The lock was not free within the time given; nothing was changed."""

    def __init__(self, scope: str, lock_id: str, holder: str, fencing_number: int, wait_s: float) -> None:
        self.holder = holder  #: `<host>-<pid>-<random>`; "" if it was released at that very moment
        self.fencing_number = fencing_number
        held = f"is held by {holder} since stream sequence {fencing_number}" if holder else "was always taken"
        super().__init__(f"lock {scope}/{lock_id} {held}: gave up after {wait_s:g} s")


class UniqueKeyTakenError(RefusedError):
    """Another job holds the key that makes a job unique; nothing was changed.

    Raised by an enqueue with `Unique(on_conflict="reject")`, and by a requeue of a dead letter whose key another job
    got meanwhile.
    """

    def __init__(self, task: str, key: str, queue: str, job_id: str) -> None:
        self.task = task
        self.key = key  #: 40 hexadecimal digits, as in `ledger.unique.<task>.<key>`
        self.queue = queue  #: the queue of the job that holds it
        self.job_id = job_id  #: the job that holds it
        super().__init__(
            f"job {job_id} in queue {queue} has the unique key that this job of task {task} would need: "
            f"`jobledger jobs show {job_id}` shows that job"
        )


class LedgerFullError(RefusedError):
    """The stream reached its byte limit; the event was not stored."""


class LedgerThrottledError(LedgerFullError):
    """The ledger keeps the rest of its room for its present jobs; the new one was not stored. Try again later."""


class LedgerClosedError(RefusedError):
    """This client was closed, by `close` or at the end of its block: connect again. The jobs are not touched."""


class ForeignLoopError(RefusedError):
    """A client, or an object opened with it, is used outside its event loop or process; nothing was sent.

    An asynchronous `Ledger` lives in the event loop that connected it. A lock or a reader of events lives in its
    process: a forked child does not have them. Raised at once, since a wait there would never end.
    """


class StreamMismatchError(RefusedError):
    """A stream or consumer has settings that would break a guarantee; it was not changed."""

    def __init__(
        self,
        name: str,
        differences: list[str],
        advice: str = "change them with your NATS tools, or use another environment",
    ) -> None:
        self.name = name
        self.differences = differences  #: one "setting: is X, must be Y" for each setting
        super().__init__(
            f"stream {name} exists with settings jobledger cannot work with ({'; '.join(differences)}): {advice}",
        )


class JetStreamDisabledError(RefusedError):
    """The server runs without JetStream, or the account may not use it."""

    is_for_good: bool = False  #: the server is configured without JetStream: waiting does not help


class PermissionRefusedError(RefusedError):
    """The server does not allow this user to publish or subscribe to a subject."""

    def __init__(self, verb: str, subject: str) -> None:
        self.verb = verb  #: publish or subscribe
        self.subject = subject
        super().__init__(
            f"the server does not allow this user to {verb} to {subject}: "
            "give it that right (docs/subjects.md lists those of each role)"
        )


class UnsupportedServerError(RefusedError):
    """The server is older than what the ledger needs."""


class PortInUseError(RefusedError):
    """The port to listen on is taken by another process."""


class StoreInUseError(RefusedError):
    """Another embedded server already uses this directory."""


class UnsafeFolderError(RefusedError):
    """Somebody else can put files into a folder that should belong to this user alone; it was not touched."""

    def __init__(self, folder: object, why: str, mend: str) -> None:
        super().__init__(f"{folder} {why}: run `{mend}`, or name a folder that does not exist yet")


class ErasedError(RefusedError):
    """The value was sealed under a key of its owner that is destroyed: nobody can read it any more."""

    def __init__(self, key: str, at: datetime | None = None) -> None:
        self.key = key  #: `<owner>/<number>`
        self.at = at  #: when it was destroyed; None: not known here
        owner = key.rpartition("/")[0]
        when = "" if at is None else f" at {at:%Y-%m-%dT%H:%M:%SZ}"
        super().__init__(
            f"the data of owner {owner} was erased{when}: nobody can read what the key {key} sealed"
        )


class OwnerErasingError(RefusedError):
    """The data of an owner is being erased: no job of the owner begins until that is done."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        super().__init__(f"the data of owner {owner} is being erased: enqueue again when that is done")


class UnreachableError(LedgerError):
    """No server answered within the limit; the same call may succeed later."""


class ServerUnreachableError(UnreachableError):
    """No connection could be made, or the connection closed for good."""

    is_for_good: bool = False  #: a server answered and refuses us: waiting does not help, somebody has to act


class ServerStartError(UnreachableError):
    """The embedded server ended, or did not become ready in time; the sentence carries its last words."""


class ServerBinaryMissingError(UnreachableError):
    """There is no nats-server to start; the sentence says what to install."""


class KeyUnavailableError(UnreachableError):
    """A sealed value cannot be read or made here now: the master key is missing, or its holder does not answer."""


class AppendOutcomeUnknownError(UnreachableError):
    """An append was sent, no answer came within the limit, and the chain could not be read to find out.

    The event may or may not be stored. Doing the same again is safe, since every append is conditional: an enqueue with
    the same id (`task.options(id=error.job_id)`) adds the job only if it is missing.
    """

    def __init__(self, message: str, *, job_id: str = "") -> None:
        self.job_id = job_id  #: the job, if the append is about one job; else ""
        super().__init__(message)


class CorruptLedgerError(LedgerError):
    """What is stored contradicts the ledger's rules: nothing may be computed from it."""

    def __init__(self, message: str, *, stream_sequence: int = 0, next_sequence: int = 0) -> None:
        self.stream_sequence = stream_sequence  #: of the first wrong event; 0: not known
        self.next_sequence = next_sequence  #: the sequence at which a reader could go on; 0: at none
        super().__init__(message)


class MalformedEventError(CorruptLedgerError):
    """A stored message is not an event of this ledger."""


class UnknownEventError(CorruptLedgerError):
    """A stored event has a type this version does not know; a newer jobledger must read it."""


class PayloadMissingError(CorruptLedgerError):
    """An event refers to a payload that the object store no longer holds, or holds with another hash."""

    def __init__(self, message: str, *, state: PayloadState) -> None:
        self.state: PayloadState = state  #: `gone` or `differs`
        super().__init__(message)


class SealBrokenError(CorruptLedgerError):
    """The key that an event names does not open its sealed value: the value was changed, or belongs elsewhere."""


class SequenceGapError(CorruptLedgerError):
    """The ledger's dense sequence has a hole: an event is missing, or the stream was rewound."""


class AttemptStoppedError(BaseException):
    """Raised by a `Context` in a task that runs in a thread or process and was told to stop.

    Like `asyncio.CancelledError` it is no `Exception`: a task that catches `Exception` lets it pass.
    """


class OutcomeError(LedgerError):
    """`result()` has no result to give."""


class JobFailedError(OutcomeError):
    """The job is a dead letter; `error` is what its last attempt recorded, if one did."""

    def __init__(self, job_id: str, sentence: str, error: Any = None) -> None:
        self.job_id = job_id
        self.error = error
        super().__init__(f"job {job_id} failed: {sentence}")


class JobCancelledError(OutcomeError):
    """The job was cancelled or discarded and has no result."""


class ResultMismatchError(OutcomeError):
    """The job completed, but its result does not fit the task's return annotation: perhaps another version made it."""

    def __init__(self, job_id: str, task: str, why: str) -> None:
        self.job_id = job_id
        self.task = task
        super().__init__(
            f"the result of job {job_id} is not what task {task} is annotated to return ({why}): "
            f"`await ledger.job({job_id!r})` gives a handle that returns plain JSON values",
        )


class ResultTimeoutError(OutcomeError):
    """The job did not end within the time given; it goes on unharmed."""


def is_for_good(error: LedgerError) -> bool:
    """Return whether waiting is of no use: a server refuses us, or runs without JetStream."""
    return bool(getattr(error, "is_for_good", False))

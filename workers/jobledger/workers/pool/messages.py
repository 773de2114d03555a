"""Messages between a worker and the processes of its pool, beside those between any process and its parent.

Knows neither processes nor event loops.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final, Self

import msgspec

from jobledger.ledger import outcome
from jobledger.ledger.children import Parent
from jobledger.ledger.context import Channel, Context
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import AttemptStoppedError, LedgerError, StaleClaimError, UnreachableError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.inputs import finite
from jobledger.workers.processes.messages import BrokenFrameError, Fault, LogLine, Ready

#: The module of jobledger's own steps: a process can call them without a module of the application.
ENGINE: Final = "jobledger.workers.runs.engine"
#: Bytes that a frame holds besides values: names, and an error of 18,000 characters, each up to six bytes of JSON.
_FRAME_BYTES_EXTRA: Final = 256 * 1024
_NOTE_MAX: Final = 500
_task_logger = logging.getLogger("jobledger.task")


def frame_bytes_max(payload_bytes_max: int) -> int:
    """Return the largest frame there may be: a call carries two values, the input and the checkpoint."""
    return 2 * payload_bytes_max + _FRAME_BYTES_EXTRA


# From the worker.


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message: what the process has to know about its worker."""

    modules: tuple[str, ...]  #: modules to load tasks from, as given to `TaskRegistry.load`
    import_path: tuple[str, ...]  #: the worker's sys.path
    parent: int  #: process id of the worker
    payload_bytes_max: int  #: the largest input, result or checkpoint
    #: Settings of `connect` for tasks that use the ledger; None: the worker has some that JSON cannot hold.
    connection: dict[str, Any] | None = None
    memory_bytes_max: int | None  #: address space (RLIMIT_AS); None: no limit
    silence_s: (
        float | None
    )  #: the process ends itself when it hears nothing from the worker for this many seconds; None: never
    log_level: int  #: level of the root logger
    task_log_level: int  #: level of `jobledger.task`, to which a context's logger writes
    log_levels: dict[str, int] = {}  #: by name: levels of loggers of the application that have their own
    log_prints: bool = False  #: send the lines that tasks print, too


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call", omit_defaults=True):
    """Run one attempt of a task; an attempt on the worker's own loop makes its context from one, too."""

    task: str
    step: str = ""  #: `<module>:<name>` of a step, which is called instead of the task
    input: msgspec.Raw  #: JSON object of the task's arguments
    job_id: str
    queue: str
    attempt: int
    worker: str
    claim_epoch: int = 0
    deadline: datetime | None = None
    checkpoint: msgspec.Raw = NO_VALUE  #: the checkpoint that an earlier attempt stored
    trace: str = ""  #: traceparent of the attempt's span; "": nothing is traced
    parent: Parent | None = None  #: the parent of jobs that the task makes; None: it makes none
    trace_id: str = ""  #: the id of the job's trace, for the log
    number: int = 0  #: the call's number in its process; given by the pool, and repeated by the result

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of log records about the attempt."""
        return {
            "worker": self.worker,
            "queue": self.queue,
            "job": self.job_id,
            "task": self.task,
            "attempt": self.attempt,
            "trace_id": self.trace_id,
        }

    def context(self, channel: Channel) -> Context:
        """Return the context of the attempt, which speaks through `channel`."""
        kept = bytes(self.checkpoint)
        return Context(
            job_id=self.job_id,
            queue=self.queue,
            task=self.task,
            attempt=self.attempt,
            worker=self.worker,
            claim_epoch=self.claim_epoch,
            deadline=self.deadline,
            logger=logging.LoggerAdapter(_task_logger, self.facts),
            channel=channel,
            checkpoint_value=msgspec.json.decode(kept) if kept else None,
        )


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer", omit_defaults=True):
    """The answer to a checkpoint: it is stored unless there is an `error`."""

    error: str = ""  #: the class of the error that was raised
    text: str = ""
    held_epoch: int = 0  #: field of a StaleClaimError
    current_epoch: int = 0  #: field of a StaleClaimError


ToChild = Setup | Call | Answer


# From the process.


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The task called `Context.heartbeat`."""


class Report(msgspec.Struct, frozen=True):
    """The progress of a task, in a form that an event can hold."""

    done: float
    total: float | None
    note: str

    @classmethod
    def of(cls, done: float, total: float | None, note: str) -> Self:
        """Make a report from the values of a task, whatever their types.

        Raises: InvalidInputError for a value that is no finite number.
        """
        text = str(note)[:_NOTE_MAX].encode("utf-8", "replace").decode()
        return cls(finite("done", done), None if total is None else finite("total", total), text)


class Progress(Report, frozen=True, tag="progress"):
    """The task called `Context.progress`."""


class CheckpointAsked(msgspec.Struct, frozen=True, tag="checkpoint"):
    """The task called `Context.checkpoint` and waits for an `Answer`."""

    value: msgspec.Raw


class ReturnedValue(msgspec.Struct, frozen=True, kw_only=True, tag="returned"):
    """The task returned, and this is its value."""

    number: int
    value: msgspec.Raw


class ReturnedWish(msgspec.Struct, frozen=True, kw_only=True, tag="wished"):
    """The task returned one of `outcome.WISHES`."""

    number: int
    kind: str  #: the name of its class
    fields: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The task raised, did not take its input, or returned what cannot be a result."""

    number: int
    error: ErrorInfo
    may_retry: bool  #: decided by the task's `retry_on` and `give_up_on`; False once it has returned


FromChild = (
    Ready | Fault | LogLine | Heartbeat | Progress | CheckpointAsked | ReturnedValue | ReturnedWish | Failure
)

TO_CHILD: Final[msgspec.json.Decoder[ToChild]] = msgspec.json.Decoder(ToChild)
FROM_CHILD: Final[msgspec.json.Decoder[FromChild]] = msgspec.json.Decoder(FromChild)

Wish = outcome.Wish
WISHES: Final[dict[str, type[Wish]]] = {each.__name__: each for each in outcome.WISHES}


def read_wish(message: ReturnedWish) -> Wish:
    """Return the wish that the task returned.

    Raises: BrokenFrameError.
    """
    try:
        return msgspec.json.decode(message.fields, type=WISHES[message.kind])
    except (KeyError, msgspec.MsgspecError, LedgerError) as error:
        raise BrokenFrameError(f"it sent a {message.kind[:100]!r} that is none: {error}") from error


def to_answer(error: LedgerError | AttemptStoppedError) -> Answer:
    """Return the answer to a checkpoint that was not stored."""
    held, current = (error.held_epoch, error.current_epoch) if isinstance(error, StaleClaimError) else (0, 0)
    return Answer(error=type(error).__name__, text=str(error), held_epoch=held, current_epoch=current)


def to_exception(answer: Answer, job_id: str) -> LedgerError | AttemptStoppedError:
    """Return what `Context.checkpoint` raises for an answer that is a refusal."""
    if answer.error == StaleClaimError.__name__:
        return StaleClaimError(job_id, answer.held_epoch, answer.current_epoch)
    for known in (AttemptStoppedError, UnreachableError):
        if answer.error == known.__name__:
            return known(answer.text)
    return LedgerError(answer.text)

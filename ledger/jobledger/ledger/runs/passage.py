"""One passage of a run's function through its steps: recorded results are returned, others are made and recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.model.commands import CompleteStep, FailStep, RefuseSignal, StartStep, StepCommand
from jobledger.ledger.model.events import ErrorInfo, PayloadRef
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import check_text, encode_value
from jobledger.ledger.model.runs.orders import StepKind
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.seals import seal_error, seal_word, unseal_error
from jobledger.ledger.runs.errors import DivergedError, ForeignTaskError, RunTooLongError
from jobledger.ledger.runs.journal import RunJournal
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.runs.waits import HaltSignal, ParkSignal, Waits
from jobledger.ledger.signature import TaskSignature

# The greatest length of a run: every attempt reads all of it, so that an endless run would stop the workers.

EVENTS_WARN: Final = 10_000
EVENTS_MAX: Final = 50_000
BYTES_MAX: Final = 50 << 20
#: Bytes of an event beside the value in it.
_EVENT_BYTES: Final = 350
#: Events of an attempt beside those of its steps: `queued`, `started` and its end.
_EVENTS_OF_ATTEMPT: Final = 3


class Length:
    """The approximate events and bytes of a run: of its steps, its signals, its attempts."""

    def __init__(self, job: Job) -> None:
        self._run_id = job.id
        steps = job.steps.values()
        started = sum(each.until is not None or each.order is not None for each in steps)
        ends = sum(max(each.tries, 1) for each in steps)
        signals = sum(1 + bool(each.refused) for each in job.signals)
        self.events = started + ends + signals + _EVENTS_OF_ATTEMPT * job.attempts_count
        values = sum(len(bytes(each.result)) + len(bytes(each.items)) for each in steps)
        self.bytes = _EVENT_BYTES * self.events + values

    @property
    def is_long(self) -> bool:
        """Whether the run should end soon."""
        return self.events >= EVENTS_WARN or self.bytes >= BYTES_MAX * EVENTS_WARN // EVENTS_MAX

    def require_room(self) -> None:
        """Refuse a further step of a run that is too long. Raises: RunTooLongError."""
        if self.events >= EVENTS_MAX or self.bytes >= BYTES_MAX:
            raise RunTooLongError(self._run_id, self.events, self.bytes)

    def add(self, command: StepCommand | RefuseSignal) -> None:
        """Count one more event."""
        value = command.result if isinstance(command, CompleteStep) else b""
        if isinstance(command, StartStep):
            value = command.items
        self.events += 1
        self.bytes += _EVENT_BYTES + len(bytes(value))


_REASON_MAX: Final = 500  #: most characters of the reason of a refused signal
_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str})


class StepRequest(msgspec.Struct, frozen=True, gc=False):
    """A step that the code asks for."""

    key: str
    kind: StepKind
    target: str
    digest: str
    known: Step | None  #: the recorded step; None: not recorded


class Undo(msgspec.Struct, frozen=True, gc=False):
    """The undo of a step, in case the run fails or is cancelled."""

    key: str
    step: StepFunction[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Passage:
    """One attempt's way through a run, without knowledge of where functions are called and events are stored."""

    def __init__(
        self,
        journal: RunJournal,
        signature: TaskSignature,
        *,
        parallel: int,
        is_ending: bool = False,
    ) -> None:
        """`signature`: signature of the workflow. `parallel`: how many functions of steps may run at once.

        `is_ending`: return recorded steps, so that their undos are registered, but do nothing new.
        """
        attempts = journal.job.attempts
        self.journal = journal
        self._branches: dict[asyncio.Task[Any], Branch] = {}  # branches by the tasks that run them
        self.encode_input = signature.encode
        self.attempt = attempts[-1].number if attempts else 1
        self.waits = Waits(journal, lambda: len(self.undos))
        self.undos: list[Undo] = []  #: in the order in which they were registered
        self.diverged: DivergedError | None = None
        self.is_ending = is_ending
        self.places = asyncio.Semaphore(parallel)  #: limits the functions of steps that run at once
        self.taking = asyncio.Lock()  #: for signals: branches that wait for one name must take different ones
        self.look()

    def look(self) -> None:
        """Read the recorded steps, before the code asks for the first one."""
        self._unvisited = dict.fromkeys(self.journal.job.steps)
        self.length = Length(self.journal.job)

    @property
    def unvisited(self) -> tuple[str, ...]:
        """Keys of the steps recorded before this attempt that the code has not asked for, in their order."""
        return tuple(self._unvisited)

    def bind(self, task: asyncio.Task[Any], branch: Branch) -> None:
        """Note that a task runs a branch."""
        self._branches[task] = branch

    def release(self, task: asyncio.Task[Any]) -> None:
        """Forget a task, whose branch has ended."""
        self._branches.pop(task, None)

    def branch_here(self, name: str) -> Branch:
        """Return the branch of the current task, for a step of that name.

        Raises: ForeignTaskError in a task that is no branch, and inside of a step.
        """
        task = asyncio.current_task()
        branch = None if task is None else self._branches.get(task)
        if branch is None:
            raise ForeignTaskError(name)
        if branch.busy:
            raise ForeignTaskError(name, f"inside of step {branch.busy!r}: a step makes no steps")
        return branch

    @contextlib.contextmanager
    def enter(self, name: str) -> Generator[Branch, None, None]:
        """Yield the branch that runs here, busy with the step of that name for the length of the block.

        Raises: ForeignTaskError, DivergedError, ParkSignal.
        """
        branch = self.branch_here(name)
        branch.busy = name
        try:
            self._require_going_on()
            yield branch
        except DivergedError as error:
            self.diverged = error  # kept in case the function catches it
            raise
        finally:
            branch.busy = ""

    def _require_going_on(self) -> None:
        if self.waits.is_parked:  # the function caught the exception that should have ended it
            raise ParkSignal
        if self.diverged is not None:
            raise self.diverged

    async def ask(self, key: str, kind: StepKind, target: str, digest: str = "") -> StepRequest:
        """Request the step of a key; return the request with the recorded step.

        Raises: DivergedError; RunTooLongError; ParkSignal if an operator asked the run to pause, and HaltSignal if it
            has to end, before a step that is not over.
        """
        known, seals = self.journal.job.steps.get(key), self.journal.key
        if digest and seals is not None:  # a plain digest would confirm a guess of the input
            digest = seals.index(digest.encode())[: len(digest)]
        self._unvisited.pop(key, None)
        if known is not None:
            _require_same(known, kind, target, digest)
            if _is_copied(known):
                digest = known.input_sha256
            if known.has_ended:
                return StepRequest(key, kind, target, digest, known)
        if kind != "undo":
            job = self.journal.job
            if self.is_ending or job.cancel_requested:
                raise HaltSignal
            if job.pause_requested:
                await self.waits.for_operator()
            if known is None:
                self.length.require_room()
        return StepRequest(key, kind, target, digest, known)

    def has_unvisited(self, branch: Branch) -> bool:
        """Return whether steps of a branch were recorded before this attempt that the code has not asked for yet."""
        return any(key.startswith(branch.prefix) for key in self._unvisited)

    # --- The record.

    async def _record(self, make: Callable[..., StepCommand], asked: StepRequest, **said: Any) -> None:
        """Append a command about a step; `said`: its fields beside those that name the step."""
        command = make(
            epoch=self.journal.epoch,
            step=asked.key,
            kind=asked.kind,
            target=asked.target,
            input_sha256=asked.digest,
            **said,
        )
        await self.journal.append(command)
        self.length.add(command)

    async def start(self, asked: StepRequest, *, until: datetime | None = None, **more: Any) -> Step:
        """Record that a step begins; `more` are fields of `StartStep`."""
        await self._record(StartStep, asked, until=until, **more)
        return self.journal.job.steps[asked.key]

    async def complete(
        self,
        asked: StepRequest,
        text: bytes,
        *,
        tries: int = 1,
        duration_ms: float = 0.0,
        of_group: bool = False,
    ) -> None:
        """Record the only result of a step. `of_group`: the result is those of all its children.

        Raises: PayloadTooLargeError, and as `RunJournal.append`.
        """
        value, reference = await self.journal.put(text, what=f"result of step {asked.key}", of_group=of_group)
        await self._record(
            CompleteStep, asked, result=value, result_ref=reference, tries=tries, duration_ms=duration_ms
        )

    async def take(
        self, asked: StepRequest, sequence: int, value: msgspec.Raw, reference: PayloadRef | None
    ) -> None:
        """Record that a step takes a signal, by its stream sequence, as the result."""
        await self._record(CompleteStep, asked, result=value, result_ref=reference, signal=sequence)

    async def refuse(self, asked: StepRequest, sequence: int, reason: str) -> None:
        """Record that a wait cannot read a signal, by its stream sequence, and goes on."""
        seals = self.journal.key
        command = RefuseSignal(
            epoch=self.journal.epoch,
            step=asked.key,
            name=asked.target,
            signal=sequence,
            reason=reason[:_REASON_MAX] if seals is None else seal_word(seals, reason[:_REASON_MAX]),
        )
        await self.journal.append(command)
        self.length.add(command)

    async def fail(
        self, asked: StepRequest, error: ErrorInfo, *, tries: int = 1, retry_at: datetime | None = None
    ) -> None:
        """Record a try that failed; without `retry_at` it was the last one."""
        if (seals := self.journal.key) is not None:
            error = seal_error(seals, error)
        await self._record(FailStep, asked, error=error, tries=tries, retry_at=retry_at)

    def error_of(self, step: Step) -> ErrorInfo | None:
        """Return the error of a step's newest failed try. Raises: SealBrokenError."""
        if step.error is None or self.journal.key is None:
            return step.error
        return unseal_error(self.journal.key, step.error)

    async def result_of(self, step: Step) -> bytes:
        """Return the recorded result of a completed step as JSON text."""
        return await self.journal.get(step.result, step.result_ref)

    async def value(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value that `make` made when the run came here first."""
        with self.enter(name) as branch:
            asked = await self.ask(branch.key(name), "value", name)
            if asked.known is None:
                await self.complete(asked, encode_value(make(), what=f"value of {name}"))
            return msgspec.json.decode(await self.result_of(self.journal.job.steps[asked.key]))


def text_of(value: Any, *, what: str) -> bytes:
    """Return a result as JSON text that can be read back. Raises: InvalidInputError."""
    text = encode_value(value, what=what)
    return text if type(value) in _PLAIN_TYPES else check_text(text, what=what)


def _require_same(known: Step, kind: StepKind, target: str, digest: str) -> None:
    """Refuse code that asks for something else than the recorded step. Raises: DivergedError."""
    if (known.kind, known.target) != (kind, target):
        raise DivergedError(
            known.key, known.sequence, f"as {_called(known.kind, known.target)}", _called(kind, target)
        )
    # Copied steps of a rerun were recorded in another run, perhaps for another input.
    if digest and known.input_sha256 and digest != known.input_sha256 and not _is_copied(known):
        raise DivergedError(
            known.key,
            known.sequence,
            "with another input",
            f"{_called(kind, target)} with input {digest} (recorded {known.input_sha256})",
        )


def _is_copied(known: Step) -> bool:
    return known.copied is not None or bool(known.origins)


def _called(kind: StepKind, target: str) -> str:
    return f"{kind} {target}"

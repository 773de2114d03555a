"""A rehearsal: a recorded run, replayed with the code that is loaded here, as far as the record goes.

No function of a step is called, no child is made and nothing is appended: at a step without a recorded end a branch of
the rehearsal stops. Operations without a step's function (`patched`, `now`, sleeps, sent signals) go on in memory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, cast

import msgspec

from jobledger.ledger.model.commands import Join, RefuseSignal, Stamp, StartStep, StepCommand
from jobledger.ledger.model.decision_parts.facts import envelope
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo, PayloadRef, Started
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.stored import StoredGraph
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.runs.orders import StepKind
from jobledger.ledger.model.seals import ValueKey, is_sealed
from jobledger.ledger.options import Options
from jobledger.ledger.runs.errors import DivergedError
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.runs.passage import Passage, StepRequest
from jobledger.ledger.runs.run import Run
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.runs.waits import HaltSignal, ParkSignal
from jobledger.ledger.runs.workflow import WorkflowFunction
from jobledger.ledger.tables.table import TableWork
from jobledger.ledger.tasks import Task

#: A function that fetches the JSON text in an event, or the one that it refers to.
GetValue = Callable[[msgspec.Raw, PayloadRef | None], Awaitable[bytes]]

_WHO: Final = "rehearsal"
#: Kinds of steps that end without a function of the application.
_FREE: Final = frozenset[StepKind]({"value", "patch", "sleep", "wait"})
#: Kinds of steps beside which the code goes on: it stops where it waits for them.
_BESIDE: Final = frozenset[StepKind]({"call", "map", "graph"})


class RehearsalResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rehearsal."""

    diverged: DivergedError | None = None  #: the code asks for something else than the recorded step
    error: Exception | None = None  #: another error of the function, maybe the same as in the recorded run
    new: tuple[
        str, ...
    ] = ()  #: keys of steps that the code asks for and that are not recorded, where branches stop
    unvisited: tuple[str, ...] = ()  #: keys of recorded steps that the code did not ask for before it stopped


async def rehearse(
    workflow: WorkflowFunction[..., Any, ..., Any],
    job: Job,
    *,
    now: datetime,
    get: GetValue,
    key: ValueKey | None = None,
) -> RehearsalResult:
    """Replay a run's function over its recorded steps, in any state of the run; `key`: the key of its owner.

    Code of the function between its steps is executed.

    Raises: PayloadMissingError, UnreachableError from `get`.
    """
    journal = _Paper(job, now, get, key)
    passage = _Rehearsal(journal, workflow)
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    passage.bind(task, Branch())
    journal.stop = passage.waits.for_operator
    error: Exception | None = None
    try:
        text = await get(job.order.input, job.order.input_ref)
        given = {workflow.signature.context_parameter or "run": Run(passage)}
        await workflow.function(**workflow.signature.decode(text), **given)
    except (ParkSignal, HaltSignal):
        pass  # it came to the end of the record
    except Exception as raised:  # noqa: BLE001 - any error of the function is reported
        error = raised
    finally:
        await passage.waits.close()
    if journal.trouble is not None:
        raise journal.trouble
    diverged = passage.diverged or (error if isinstance(error, DivergedError) else None)
    return RehearsalResult(
        diverged=diverged,
        error=None if diverged is not None else error,
        new=tuple(passage.new),
        unvisited=passage.unvisited,
    )


class _Rehearsal(Passage):
    """A passage that does new things only if they need no function."""

    def __init__(self, journal: _Paper, workflow: WorkflowFunction[..., Any, ..., Any]) -> None:
        super().__init__(journal, workflow.signature, parallel=workflow.workflow.parallel)
        self.new: dict[str, None] = {}

    async def ask(self, key: str, kind: StepKind, target: str, digest: str = "") -> StepRequest:
        asked = await super().ask(key, kind, target, digest)
        if asked.known is None and kind not in _FREE:
            self.new[key] = None
            await self.waits.for_operator()
        elif asked.known is not None and not asked.known.has_ended and kind not in _FREE | _BESIDE:
            await self.waits.for_operator()
        return asked


class _Paper:
    """A `RunJournal` without a ledger: recorded values are read, new ones are kept in memory."""

    may_linger = False

    def __init__(self, job: Job, now: datetime, get: GetValue, key: ValueKey | None) -> None:
        self.chance = random.Random(0)  # noqa: S311 - for numbers that are not recorded
        self.key = key
        self._now = now
        self._get = get
        self._news = asyncio.Event()
        number = job.attempts_count + 1
        started = Started(**envelope(job, self._stamp), attempt=number, worker=_WHO, lease_s=0.0)
        self.job = evolve(job, started, job.last_sequence + 1)
        self.stop: Callable[[], Awaitable[None]] = self._refuse  #: called by waits whose event never comes
        self.trouble: Exception | None = None  #: error of a recorded value that could not be read

    @property
    def _stamp(self) -> Stamp:
        return Stamp(at=self._now, by=_WHO)

    @property
    def epoch(self) -> int:
        return self.job.claim_epoch

    def now(self) -> datetime:
        return self._now

    async def append(self, command: StepCommand | RefuseSignal | Join) -> None:
        for event in decide(self.job, command, self._stamp):
            self.job = evolve(self.job, event, self.job.last_sequence + 1)
        if isinstance(command, StartStep) and command.kind == "sleep" and command.until is not None:
            self._now = max(self._now, command.until)  # a new sleep takes no time here
        self._news.set()

    async def park(self, steps: tuple[str, ...], until: datetime | None, undos: int) -> bool:  # noqa: ARG002
        return True

    async def news(self, limit_s: float, *, look: bool) -> None:  # noqa: ARG002
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    async def refresh(self) -> None:
        pass

    def poke(self) -> None:
        self._news.set()

    async def ensure_limits(self, task: Task[Any, Any], options: Options) -> None:
        pass

    async def stored_graph(self, name: str) -> StoredGraph:
        raise GraphNotFoundError(name)  # only recorded steps are rehearsed

    async def open(self, key: str, *, again: bool) -> None:
        pass

    async def ends(self, key: str, items: int | None = None) -> list[MemberEnd]:  # noqa: ARG002
        await self.stop()
        self._never()

    async def abandon(self, prefix: str) -> None:
        pass

    async def put(self, text: bytes, **_: object) -> tuple[msgspec.Raw, PayloadRef | None]:
        return msgspec.Raw(text), None

    async def put_items(self, texts: Sequence[bytes], *, what: str) -> tuple[msgspec.Raw, PayloadRef | None]:  # noqa: ARG002
        return msgspec.Raw(b"[" + b",".join(texts) + b"]"), None

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        if self.key is not None and reference is None and not is_sealed(bytes(value)):
            return bytes(value)  # `put` stored it here
        try:
            return await self._get(value, reference)
        except Exception as error:  # kept and raised again, in case the workflow catches it
            self.trouble = error
            raise

    @property
    def tables(self) -> TableWork:
        return cast("TableWork", _NoTables())

    async def call(self, step: StepFunction[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        self._never()

    def describe(self, error: BaseException) -> ErrorInfo:
        return ErrorInfo(kind="exception", type=type(error).__name__, message=str(error))

    async def _refuse(self) -> None:
        self._never()

    def _never(self) -> NoReturn:
        raise AssertionError("a rehearsal stops before it calls anything")


class _NoTables:
    """The tables of a rehearsal, known only by their records; code that needs their rows stops there."""

    def __getattr__(self, name: str) -> NoReturn:
        raise HaltSignal

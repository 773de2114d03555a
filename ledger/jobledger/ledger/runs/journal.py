"""The interface between a run's code and the worker that executes it: what a `Run` needs of its worker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from jobledger.ledger.model.commands import Join, RefuseSignal, StepCommand
from jobledger.ledger.model.events import ErrorInfo, PayloadRef
from jobledger.ledger.model.graphs.stored import StoredGraph
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.seals import ValueKey
from jobledger.ledger.options import Options
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.tables.table import TableWork
from jobledger.ledger.tasks import Task


class RunJournal(Protocol):
    """One attempt of a run, as the code of the run sees the ledger and the machine. Everything runs on one loop."""

    chance: random.Random  #: spreads retries, and is what `run.random` records

    @property
    def job(self) -> Job:
        """The run as it is known here; what others append shows once something is appended, or after `news`."""
        ...

    @property
    def key(self) -> ValueKey | None:
        """The key that seals what is recorded of the run; None: it has no owner."""
        ...

    @property
    def epoch(self) -> int:
        """The claim of this attempt."""
        ...

    def now(self) -> datetime:
        """Return the time, UTC."""
        ...

    async def append(self, command: StepCommand | RefuseSignal | Join) -> None:
        """Record something of a step, on condition of the claim.

        Raises: StaleClaimError for an attempt that lost its run, IllegalTransitionError for a step that has its end,
        LedgerFullError, UnreachableError after trying for minutes.
        """
        ...

    async def park(self, steps: tuple[str, ...], until: datetime | None, undos: int) -> bool:
        """Record that the run waits for any of these steps, and so end the attempt; False where one of them is over.

        Raises: as `append`.
        """
        ...

    async def news(self, limit_s: float, *, look: bool) -> None:
        """Wait until there may be news of the run, for at most `limit_s` seconds; `job` then has the hinted events.

        With `look` the chain is read also when the time has passed without a hint: a hint may be lost. A server that does
        not answer is no error: whoever waits asks again.
        """
        ...

    async def refresh(self) -> None:
        """Read what others appended to the run's chain. Raises: UnreachableError."""
        ...

    def poke(self) -> None:
        """Let `news` return."""
        ...

    @property
    def may_linger(self) -> bool:
        """Whether a short wait may keep the worker's slot at this moment, because nobody else wants it."""
        ...

    async def ensure_limits(self, task: Task[Any, Any], options: Options) -> None:
        """See to it that the limits that a task's code defines are in the ledger, before jobs of it are."""
        ...

    async def stored_graph(self, name: str) -> StoredGraph:
        """Return the newest version of a stored graph.

        Raises: GraphNotFoundError, InvalidTokenError; UnreachableError after trying for minutes.
        """
        ...

    async def open(self, key: str, *, again: bool) -> None:
        """Make the children of a step that may exist; `again`: an earlier attempt may have made some.

        Raises: ChildIdTakenError, LedgerFullError, UnreachableError.
        """
        ...

    async def ends(self, key: str, items: int | None = None) -> list[MemberEnd]:
        """Return how the children of a step ended, all of them or the items whose bits are set, in their order.

        Raises: UnreachableError where they cannot be read yet, PayloadMissingError; PayloadTooLargeError where their
        results come to more than a run may read at once.
        """
        ...

    async def abandon(self, prefix: str) -> None:
        """Cancel the open children of the steps whose keys begin so: nobody waits for them any more."""
        ...

    async def put(
        self, text: bytes, *, what: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return what an event is to carry of a JSON value: itself, or a reference to where it is stored now.

        `of_group`: it is what all children of a step get or returned, which may be larger than other values.

        Raises: PayloadTooLargeError, LedgerFullError, UnreachableError.
        """
        ...

    async def put_items(self, texts: Sequence[bytes], *, what: str) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return what an event is to carry of the inputs of a step's children, as `put`; each one is sealed by itself.

        So whoever makes the children needs no key.
        """
        ...

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """Return the JSON text that an event carries or refers to."""
        ...

    @property
    def tables(self) -> TableWork:
        """What makes and reads the run's tables. Raises: RefusedError where there are none."""
        ...

    async def call(self, step: StepFunction[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the function of a step, where its rules say, and return or raise what it does."""
        ...

    def describe(self, error: BaseException) -> ErrorInfo:
        """Return what is recorded of an exception."""
        ...

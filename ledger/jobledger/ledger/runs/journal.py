"""The interface between a run's code and the worker that executes it: the services that a `Run` needs."""

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

    chance: random.Random  #: spreads retries; source of `run.random`

    @property
    def job(self) -> Job:
        """The run as known here; events of other processes are included after an append or after `news`."""
        ...

    @property
    def key(self) -> ValueKey | None:
        """The key that seals recorded values of the run; None: it has no owner."""
        ...

    @property
    def epoch(self) -> int:
        """The claim epoch of this attempt."""
        ...

    def now(self) -> datetime:
        """Return the time, UTC."""
        ...

    async def append(self, command: StepCommand | RefuseSignal | Join) -> None:
        """Record a fact about a step, on condition of the claim.

        Raises: StaleClaimError for an attempt that lost its run, IllegalTransitionError for a step that has its end,
        LedgerFullError, UnreachableError after trying for minutes.
        """
        ...

    async def park(self, steps: tuple[str, ...], until: datetime | None, undos: int) -> bool:
        """Record that the run waits for any of these steps, which ends the attempt; False if one of them is over.

        Raises: as `append`.
        """
        ...

    async def news(self, limit_s: float, *, look: bool) -> None:
        """Wait until there may be new events of the run, at most `limit_s` seconds; `job` then has the hinted ones.

        With `look` the chain is also read after that time without a hint, since a hint may be lost. A server that does
        not answer is no error: the caller asks again.
        """
        ...

    async def refresh(self) -> None:
        """Read events that others appended to the run's chain. Raises: UnreachableError."""
        ...

    def poke(self) -> None:
        """Make `news` return."""
        ...

    @property
    def may_linger(self) -> bool:
        """Whether a short wait may keep the worker's slot now, because no other job needs it."""
        ...

    async def ensure_limits(self, task: Task[Any, Any], options: Options) -> None:
        """Make sure that the limits which a task's code defines are in the ledger, before its jobs are."""
        ...

    async def stored_graph(self, name: str) -> StoredGraph:
        """Return the newest version of a stored graph.

        Raises: GraphNotFoundError, InvalidTokenError; UnreachableError after trying for minutes.
        """
        ...

    async def open(self, key: str, *, again: bool) -> None:
        """Make the children of a step that may exist; `again`: an earlier attempt may have made some of them.

        Raises: ChildIdTakenError, LedgerFullError, UnreachableError.
        """
        ...

    async def ends(self, key: str, items: int | None = None) -> list[MemberEnd]:
        """Return the ends of a step's children in their order, of all or of the items whose bits are set.

        Raises: UnreachableError if they cannot be read yet, PayloadMissingError; PayloadTooLargeError if their results
            are more than a run may read at once.
        """
        ...

    async def abandon(self, prefix: str) -> None:
        """Cancel the open children of the steps whose keys begin so, for which nothing waits any more."""
        ...

    async def put(
        self, text: bytes, *, what: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return the form of a JSON value for an event: the value, or a reference to the place where it is stored now.

        `of_group`: the value is the inputs or results of all children of a step, which may be larger than other values.

        Raises: PayloadTooLargeError, LedgerFullError, UnreachableError.
        """
        ...

    async def put_items(self, texts: Sequence[bytes], *, what: str) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return the form of the inputs of a step's children for an event, as `put`; each one is sealed by itself.

        So a process that makes the children needs no key.
        """
        ...

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """Return the JSON text that an event carries or refers to."""
        ...

    @property
    def tables(self) -> TableWork:
        """The maker and reader of the run's tables. Raises: RefusedError without tables."""
        ...

    async def call(self, step: StepFunction[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the function of a step, in the place of its rules; return its result or raise its error."""
        ...

    def describe(self, error: BaseException) -> ErrorInfo:
        """Return the description of an exception for the record."""
        ...

"""A projection as a witness of the ledger's check: its rows must be what the very events that are checked add up to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from jobledger.audit.verify import Checker
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Log
from jobledger.projections.compare import difference_apart
from jobledger.projections.errors import DamagedProjectionError, OlderSchemaError, ProjectionError
from jobledger.projections.projector import Position, Projector
from jobledger.projections.queries import Store

_EVENTS_AT_ONCE: Final = 4_000
#: A projector may move the file on while it is compared: then it is compared anew.
_TRIES: Final = 5

WHAT: Final = "projection"


class ProjectionWitness:
    """Fills a fresh projection in the pass that checks the ledger, then compares it with the one that is there.

    Use it as an async context manager: the fresh one is a temporary file.
    """

    def __init__(self, path: Path, *logs: Log) -> None:
        """`logs` are views of one ledger: what is in the file decides whether archived events count as well."""
        self._path = path
        self._logs = logs
        self._log = logs[0]
        self._folder = tempfile.TemporaryDirectory(prefix="jobledger-")
        self._fresh: Projector | None = None
        self._gathered: list[Message] = []
        self._wanted = range(0)  # the stream sequences that are in the file
        self._problem: tuple[str, bool] | None = None  # a sentence, and whether the projection is to blame

    async def __aenter__(self) -> Self:
        """Look at the file, and begin the fresh one.

        Raises: ProjectionError where there is none, or none of ours.
        """
        try:
            await self._begin()
        except OlderSchemaError as error:
            self._problem = (str(error), False)
        except DamagedProjectionError as error:
            self._problem = (str(error), True)
        except BaseException:
            self._close()
            raise
        return self

    async def _begin(self) -> None:
        position = self._position()
        firsts = [(await log.head()).first_sequence for log in self._logs]
        if position.begins_at not in firsts:
            sentence = f"its rows begin at stream sequence {position.begins_at}, the ledger at {firsts[0]}"
            self._problem = (f"{sentence}; name what was archived with --archive, or rebuild it", False)
            return
        self._log = self._logs[firsts.index(position.begins_at)]
        self._wanted = range(position.begins_at, position.stream_sequence + 1)
        self._fresh = Projector(self._log, Path(self._folder.name) / "fresh.db")
        _ = await self._fresh.prepare()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._fresh is not None:
            self._fresh.close()
        self._folder.cleanup()

    def _position(self) -> Position:
        with Store.open(self._path) as store:
            return store.position()

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; see `audit.Witness`."""
        if self._problem is None:
            self._gathered += (message for message in batch if message.stream_sequence in self._wanted)
            if len(self._gathered) >= _EVENTS_AT_ONCE:
                self._commit()

    def _commit(self) -> None:
        events, self._gathered = self._gathered, []
        if not events or self._fresh is None:
            return
        try:
            self._fresh.commit(events)
        except ProjectionError as error:
            self._problem = (str(error), False)  # the ledger's own fault, which the check names

    async def finish(self, checker: Checker) -> None:
        """Tell the checker what does not agree; see `audit.Witness`."""
        try:
            if self._problem is None:
                self._commit()
            if self._problem is None:
                await self._compare(checker)
        except DamagedProjectionError as error:
            self._problem = (str(error), True)
        except (ProjectionError, CorruptLedgerError) as error:
            self._problem = (str(error), False)
        if self._problem is None:
            return
        sentence, is_to_blame = self._problem
        if is_to_blame:
            checker.note("", "projection", sentence)
        checker.compared(WHAT, f"{self._path} was not compared: {sentence}", agrees=not is_to_blame)

    async def _compare(self, checker: Checker) -> None:
        assert self._fresh is not None, "without a problem there is one"
        head = (await self._log.head()).last_sequence
        position = self._position()
        found: str | None = None
        for _ in range(_TRIES):
            if position.stream_sequence > head:
                found = (
                    f"it has read up to stream sequence {position.stream_sequence}, the ledger ends at {head}: "
                    "the tail is missing"
                )
                break
            _ = await self._fresh.catch_up(until=position.stream_sequence)
            found, before = await difference_apart(self._path, self._fresh.path), position
            position = self._position()
            if found is None or position == before:
                break
            head = (await self._log.head()).last_sequence
        if found is not None:
            found = found.replace(str(self._fresh.path), "the ledger")
            checker.note("", "projection", f"{self._path}: {found}", stream_sequence=position.stream_sequence)
            checker.compared(WHAT, f"{self._path} differs: {found}", agrees=False)
            return
        sentence = (
            f"{self._path} is what the events up to stream sequence {position.stream_sequence:,} add up to"
        )
        checker.compared(WHAT, sentence, agrees=True)

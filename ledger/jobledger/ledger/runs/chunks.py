"""`Run.each`: calls of a step for many items in this process, with one event for each chunk of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.runs.branches import side_by_side
from jobledger.ledger.runs.calls import StepCall
from jobledger.ledger.runs.passage import Passage
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.steps import StepFunction


class Chunks:
    """The calls of one step for all items."""

    def __init__(
        self, passage: Passage, step: StepFunction[[Any], Any], items: Sequence[Any], chunk: int, limit: int
    ) -> None:
        """Raises: ConfigurationError for a chunk or limit below 1."""
        for what, value in (("chunk", chunk), ("limit", limit)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(
                    f"{what} of run.each must be a whole number, 1 or more, got {value!r}"
                )
        self._passage = passage
        self._step = step
        self._chunks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
        self._limit = limit

    async def run(self, branch: Branch, name: str) -> list[Any]:
        """Return the results of all items, in their order."""
        keyed = [
            (branch.key(name or self._step.name), some) for some in self._chunks
        ]  # before any is awaited
        calls = [_chunk(self._passage, self._step, key, some) for key, some in keyed]
        found = await side_by_side(self._passage, calls, self._limit)
        return [value for values in found for value in values]


def _chunk(passage: Passage, step: StepFunction[[Any], Any], key: str, items: Sequence[Any]) -> Any:
    call = _ChunkCall(passage, step, tuple(items), {})
    return lambda: call.run(key)


class _ChunkCall(StepCall):
    """One call of a step for several items, one after the other; its result is the list of theirs."""

    def _digest(self) -> str:
        for item in self._args[:1]:
            self._step.digest((item,), {})  # that it takes one
        return self._step.digest_of(list(self._args))

    def _read(self, text: bytes) -> Any:
        return [self._step.read(bytes(each)) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]

    async def _do(self) -> Any:
        return [await self._passage.journal.call(self._step, (item,), {}) for item in self._args]

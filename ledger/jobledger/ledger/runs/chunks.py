"""`Run.each`: calls of a step for many items in this process, with one event for each chunk of items."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.runs.branches import side_by_side
from jobledger.ledger.runs.passage import Passage
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.step_call import StepCall
from jobledger.ledger.runs.steps import StepFunction


def split(items: Sequence[Any], chunk: int, limit: int) -> list[Sequence[Any]]:
    """Return the chunks of items. Raises: ConfigurationError for a chunk or limit below 1."""
    for what, value in (("chunk", chunk), ("limit", limit)):
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"{what} of run.each must be a whole number, 1 or more, got {value!r}")
    return [items[start : start + chunk] for start in range(0, len(items), chunk)]


async def call_each(
    passage: Passage,
    branch: Branch,
    step: StepFunction[..., Any],
    chunks: Sequence[Sequence[Any]],
    *,
    limit: int,
    name: str,
) -> list[Any]:
    """Call a step for all items of these chunks, and return the results in their order."""
    keys = [branch.key(name or step.name) for _ in chunks]  # keys are taken before any call is awaited
    calls = [_ChunkCall(passage, step, tuple(some), {}) for some in chunks]
    runs = [functools.partial(call.run, key) for call, key in zip(calls, keys, strict=True)]
    found = await side_by_side(passage, runs, limit)
    return [value for values in found for value in values]


class _ChunkCall(StepCall):
    """One call of a step for several items, one after the other; its result is the list of their results."""

    def _digest(self) -> str:
        for item in self._args[:1]:
            self._step.digest((item,), {})  # check that the step takes one item
        return self._step.digest_of(list(self._args))

    def _read(self, text: bytes) -> Any:
        return [self._step.read(bytes(each)) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]

    async def _do(self) -> Any:
        return [await self._passage.journal.call(self._step, (item,), {}) for item in self._args]

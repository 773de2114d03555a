"""Branches of a run side by side: all of them to their ends, or until the first one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.runs.errors import DivergedError
from jobledger.ledger.runs.passage import Passage
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.waits import HaltSignal, ParkSignal

BranchFunction = Callable[[], Awaitable[Any]]


async def gather(
    passage: Passage, parent: Branch, functions: Sequence[BranchFunction], limit: int
) -> list[Any]:
    """Run all branches to their ends and return their results; see `Run.gather`."""
    children = [parent.branch(each) for each in functions]
    return await _gathered(passage, list(zip(children, functions, strict=True)), limit)


async def side_by_side(passage: Passage, calls: Sequence[BranchFunction], limit: int) -> list[Any]:
    """Run calls that are steps of the present branch to their ends, at most `limit` at once; return their results."""
    branches = [Branch() for _ in calls]
    for each in branches:
        each.busy = "each"  # each call is itself a step, and begins no other
    return await _gathered(passage, list(zip(branches, calls, strict=True)), limit)


async def _gathered(
    passage: Passage, branches: Sequence[tuple[Branch, BranchFunction]], limit: int
) -> list[Any]:
    results: list[Any] = [None] * len(branches)
    left = enumerate(branches)

    async def work() -> None:
        for number, (branch, function) in left:
            await _run(passage, branch, function, results, number)

    count = min(limit, len(branches)) if limit else len(branches)
    if count:
        _raise_ending(await _run_as_branches(passage, [work() for _ in range(count)]))
    for each in results:
        if isinstance(each, _BranchError):
            raise each.error
    return results


async def _run(
    passage: Passage, branch: Branch, function: BranchFunction, results: list[Any], number: int
) -> None:
    """Run one branch in the present task, and keep its result or error for the caller that waits for the branches."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    passage.bind(task, branch)
    try:
        results[number] = await function()
    except Exception as error:  # noqa: BLE001 - raised again where the branches are awaited
        results[number] = _BranchError(error)


async def _run_as_branches(
    passage: Passage, coroutines: Sequence[Coroutine[Any, Any, None]], *, first: bool = False
) -> list[asyncio.Task[None]]:
    """Run coroutines as branches until all, or the first one, end; return their tasks. A cancellation ends them."""
    loop = asyncio.get_running_loop()
    passage.waits.begin(len(coroutines) - 1)
    tasks = [loop.create_task(each) for each in coroutines]
    ended, waited_for = 0, 1 if first else len(tasks)

    def on_end(task: asyncio.Task[None]) -> None:
        nonlocal ended
        passage.release(task)
        ended += 1
        if (
            ended != waited_for
        ):  # when the last of these ends, the caller goes on, and counts as active instead
            passage.waits.end()

    for each in tasks:
        each.add_done_callback(on_end)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED)
    except asyncio.CancelledError:
        await _cancel(tasks)
        raise
    return tasks


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    if not tasks:
        return
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    _see(tasks)


def _see(tasks: Sequence[asyncio.Task[Any]]) -> list[BaseException]:
    return [error for each in tasks if not each.cancelled() and (error := each.exception()) is not None]


def _raise_ending(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Raise the signal that ends the attempt, if a branch raised one: the branches' results no longer count."""
    errors = _see(tasks)
    if errors:
        raise next((each for each in errors if isinstance(each, ParkSignal | HaltSignal)), errors[0])
    if any(each.cancelled() for each in tasks):
        raise asyncio.CancelledError


class _BranchError(msgspec.Struct, frozen=True, gc=False):
    """An error that a branch raised."""

    error: Exception


async def race(passage: Passage, parent: Branch, functions: Sequence[BranchFunction]) -> Any:
    """Return the result of the first branch to end, or raise its error; see `Run.race`."""
    if not functions:
        raise InvalidInputError("race needs at least one branch")
    children = [parent.branch(each) for each in functions]
    asked = await passage.ask(parent.key("race"), "value", "race")
    if asked.known is not None:  # the winner is recorded, so only it counts
        won = int(await passage.result_of(asked.known))
        if won >= len(functions):
            raise DivergedError(
                asked.key,
                asked.known.sequence,
                f"with branch {won} as the winner",
                f"{len(functions)} branches",
            )
        await _abandon(passage, children, won)
        return (await _gathered(passage, [(children[won], functions[won])], 0))[0]
    won, outcome = await _first(passage, list(zip(children, functions, strict=True)))
    await passage.complete(asked, str(won).encode())
    await _abandon(passage, children, won)
    if isinstance(outcome, _BranchError):
        raise outcome.error
    return outcome


async def _abandon(passage: Passage, branches: Sequence[Branch], won: int) -> None:
    """Cancel children that the losing branches have begun."""
    for number, branch in enumerate(branches):
        if number != won:
            await passage.journal.abandon(branch.prefix)


async def _first(passage: Passage, branches: Sequence[tuple[Branch, BranchFunction]]) -> tuple[int, Any]:
    """Run branches until one ends, and cancel the others; return its number and its outcome."""
    results: list[Any] = [None] * len(branches)
    runs = [
        _run(passage, branch, function, results, number) for number, (branch, function) in enumerate(branches)
    ]
    tasks = await _run_as_branches(passage, runs, first=True)
    ended = [each for each in tasks if each.done()]
    await _cancel([each for each in tasks if each not in ended])
    _raise_ending(ended)
    won = tasks.index(ended[0])
    return won, results[won]

"""Requeueing and discarding dead letters, one or many: first as a plan that changes nothing, then for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import anyio
import msgspec

from jobledger.admin.dead_letters import Chosen
from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.dead_letters import Requeuing, plan_discard, plan_requeue, requeue
from jobledger.ledger.model.commands import Discard
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    InvalidError,
    NotFoundError,
    PayloadMissingError,
)

_AT_ONCE: Final = 32

Result = Literal["planned", "done", "refused", "invalid"]
#: Tries or does it to one job; returns the text of a new input.
Step = Callable[[Ledger, Chosen], Awaitable[bytes | None]]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One verb on dead letters: how it is tried and how it is done, each on one job."""

    verb: Literal["requeue", "discard"]
    past: Literal["requeued", "discarded"]
    plan: Step
    do: Step


class ActResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one dead letter."""

    chosen: Chosen
    result: Result  #: refused: not dead letters any more; invalid: it cannot be done as it was asked for
    message: str = ""  #: why it was not done
    input_text: bytes | None = None  #: the new input as JSON, where there is one


def requeue_act(how: Callable[[Chosen], Requeuing], *, by: str) -> Act:
    """Give new attempts; `how` may depend on the job, as a new input that is read by its task's types does."""

    async def plan(ledger: Ledger, chosen: Chosen) -> bytes | None:
        return (await plan_requeue(ledger, chosen.ref, how(chosen))).input_text

    async def do(ledger: Ledger, chosen: Chosen) -> bytes | None:
        return (await requeue(ledger, chosen.ref, how(chosen), by=by)).input_text

    return Act(verb="requeue", past="requeued", plan=plan, do=do)


def discard_act(reason: str, *, by: str) -> Act:
    """Close for good; every event is kept."""

    async def plan(ledger: Ledger, chosen: Chosen) -> None:
        await plan_discard(ledger, chosen.ref)

    async def do(ledger: Ledger, chosen: Chosen) -> None:
        await ledger.execute(chosen.ref, Discard(reason=reason), by=by)

    return Act(verb="discard", past="discarded", plan=plan, do=do)


async def perform_one(ledger: Ledger, act: Act, chosen: Chosen, *, plan: bool) -> ActResult:
    """Try it on one job, or do it.

    Raises: IllegalTransitionError, NotFoundError, InvalidError, PayloadMissingError, UnreachableError.
    """
    text = await (act.plan if plan else act.do)(ledger, chosen)
    return ActResult(chosen=chosen, result="planned" if plan else "done", input_text=text)


async def perform(rows: Rows, act: Act, chosen: Sequence[Chosen], *, plan: bool) -> list[ActResult]:
    """Try the act on each, or do it, several at once; a refused one does not stop the others.

    Raises: UnreachableError.
    """
    outcomes: dict[int, ActResult] = {}
    left = iter(enumerate(chosen))

    async def work() -> None:
        for number, each in left:
            outcomes[number] = await _outcome(rows.ledger, act, each, plan=plan)
            progress(len(outcomes), len(chosen))

    with rows.progress(f"looking at what to {act.verb}" if plan else act.past) as progress:
        async with anyio.create_task_group() as group:
            for _ in range(min(_AT_ONCE, len(chosen))):
                group.start_soon(work)
    return [outcomes[number] for number in sorted(outcomes)]


async def _outcome(ledger: Ledger, act: Act, chosen: Chosen, *, plan: bool) -> ActResult:
    try:
        return await perform_one(ledger, act, chosen, plan=plan)
    except (IllegalTransitionError, NotFoundError) as error:
        return ActResult(chosen=chosen, result="refused", message=str(error))
    except (InvalidError, PayloadMissingError) as error:
        return ActResult(chosen=chosen, result="invalid", message=str(error))

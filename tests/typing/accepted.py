"""Code that must type-check; checked by test_typing.py, never run."""

from __future__ import annotations

from typing import assert_type

from jobledger.ledger import Context, JobHandle, Ledger, task


@task
async def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue="mail", max_attempts=3)
def shout(text: str) -> str:
    return text.upper()


@task
async def with_context(context: Context, a: int) -> list[int]:
    return [a, context.attempt]


@task(timeout_s=3)
def with_context_in_thread(context: Context, a: int) -> dict[str, int]:
    return {context.job_id: a}


async def use(ledger: Ledger) -> None:
    assert_type(await ledger.enqueue(add, 1), JobHandle[int])
    assert_type(await ledger.enqueue(add, 1, b=2), JobHandle[int])
    assert_type(await ledger.enqueue(add.options(id="x", priority="high"), a=1), JobHandle[int])
    assert_type(await ledger.enqueue(shout, "x"), JobHandle[str])
    assert_type(await ledger.enqueue(with_context, 1), JobHandle[list[int]])
    assert_type(await ledger.enqueue(with_context_in_thread, a=1), JobHandle[dict[str, int]])
    assert_type(await (await ledger.enqueue(shout, "x")).result(timeout_s=1), str)
    assert_type(await (await ledger.enqueue(add, 1)).result(), int)
    await ledger.enqueue_many(add, ({"a": n} for n in range(3)))

"""Test jobs without a server: a ledger in memory has the real verbs, and the test moves its time.

`register` is the code under test. In a suite the fixtures `ledger`, `worker` and `assert_enqueued` of jobledger's
pytest plugin stand for what is made by hand here: docs/testing.md.
"""

from datetime import timedelta

import anyio

from jobledger.ledger import Backoff, Context, JobState, Ledger, task
from jobledger.testing import MemoryLedger, assert_enqueued


@task(queue="mail", max_attempts=3, backoff=Backoff(kind="fixed", base_s=60, jitter=0))
async def send_welcome(context: Context, name: str) -> str:
    if context.attempt == 1:
        raise ConnectionError("the mail server does not answer")
    context.progress(1, 1, "sent")
    return f"welcome {name}"


async def register(ledger: Ledger, name: str) -> None:
    """Enqueue the welcome of a new user, a day later."""
    await ledger.enqueue(send_welcome.options(delay_s=timedelta(days=1).total_seconds()), name)


async def test_a_new_user_is_welcomed_after_a_day() -> None:
    ledger = MemoryLedger()
    await register(ledger, "Ada")
    [job] = await assert_enqueued(ledger, send_welcome, name="Ada")
    assert await ledger.run_pending() == []
    [failed] = await ledger.advance(timedelta(days=1))
    assert failed.state is JobState.RETRY_WAIT
    await ledger.advance(60)
    print(await job.result(), "at attempt", len((await job.snapshot()).attempts))


async def test_the_task_alone() -> None:
    context = Context.for_test(attempt=2)
    print(await send_welcome(context, "Grace"), [report.note for report in context.channel.reports])


if __name__ == "__main__":
    anyio.run(test_a_new_user_is_welcomed_after_a_day)
    anyio.run(test_the_task_alone)

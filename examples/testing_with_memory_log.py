"""Test code that reads the ledger without a server: the log in memory keeps the same contract.

What is tested here is `spent`, a reader that adds up completed charges. Commands are decided and appended as the
client and the workers do it, with a clock that the test owns.
"""

from datetime import UTC, datetime, timedelta

import anyio
import msgspec

from jobledger.ledger import JobRef, JobState, MemoryLog, StaleClaimError
from jobledger.ledger.events import Completed, Order
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.commands import Claim, Command, Complete, Enqueue, Stamp
from jobledger.ledger.model.log import Log

REF = JobRef(queue="billing", job_id="charge-1")
BEGIN = datetime(2025, 1, 31, 8, tzinfo=UTC)


async def spent(log: Log) -> int:
    """Return the sum of what completed charges returned: the code under test."""
    total = 0
    async for batch in log.read():
        for stored in batch:
            if isinstance(stored.event, Completed) and stored.event.task == "charge":
                total += msgspec.json.decode(stored.event.result, type=int)
    return total


async def do(log: Log, command: Command, *, after_s: float) -> int:
    """Decide and append one command; return the claim epoch that results."""
    stamp = Stamp(at=BEGIN + timedelta(seconds=after_s), by="a-test")
    chain = await transact(log, REF, command, lambda: stamp)
    assert chain.job is not None
    return chain.job.claim_epoch


async def test_only_accepted_outcomes_count() -> None:
    log = MemoryLog()
    await do(
        log, Enqueue(ref=REF, task="charge", order=Order(input=msgspec.Raw(b'{"cents":100}'))), after_s=0
    )
    assert await spent(log) == 0
    epoch = await do(log, Claim(worker="worker-1", lease_s=15), after_s=1)
    try:
        await do(log, Complete(epoch=epoch + 1, result=msgspec.Raw(b"999")), after_s=2)
    except StaleClaimError as error:
        print(error)
    await do(log, Complete(epoch=epoch, result=msgspec.Raw(b"100")), after_s=3)
    charged_cents = 100
    assert await spent(log) == charged_cents
    chain = await load(log, REF)
    assert chain.job is not None
    assert chain.job.state is JobState.COMPLETED
    print(f"spent {await spent(log)} cents, {chain.last_sequence} events")


if __name__ == "__main__":
    anyio.run(test_only_accepted_outcomes_count)

"""Find the jobs that used up their attempts, read why, and requeue one of them with a mended input."""

import tempfile
from pathlib import Path

import anyio
import msgspec

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.commands import Requeue
from jobledger.ledger.errors import JobFailedError
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, Store
from jobledger.workers import Worker


@task(queue="billing", max_attempts=2)
def charge(customer: str, cents: int) -> str:
    if cents <= 0:
        message = f"cannot charge {customer} {cents} cents"
        raise ValueError(message)
    return f"charged {customer} {cents} cents"


async def fail(ledger: Ledger) -> None:
    for number in range(3):
        job = await ledger.enqueue(
            charge.options(id=f"charge-{number}"), customer=f"c{number}", cents=-number
        )
        try:
            await job.result(timeout_s=10)
        except JobFailedError as error:
            print(error)


async def mend(ledger: Ledger, projection: Path) -> None:
    """Lists come from a projection; what is done about an entry goes to the ledger."""
    with Projector(ledger.log, projection) as projector:
        await projector.catch_up()
    with Store.open(projection) as store:
        letters = store.dead_letters(queue="billing", order="oldest")
    for letter in letters:
        print(f"{letter.job_id}: {letter.reason} after {letter.attempts} attempts: {letter.error}")
    job = await ledger.job(letters[0].job_id, queue="billing")
    mended = msgspec.Raw(charge.signature.encode((), {"customer": "c0", "cents": 100}))
    await ledger.execute(job.ref, Requeue(input=mended), by="ada")
    print(await job.result(timeout_s=10))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with EmbeddedServer(directory, port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([charge]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                await fail(ledger)
                await mend(ledger, directory / "jobs.db")
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)

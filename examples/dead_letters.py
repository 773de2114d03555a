"""Find the jobs that used up their attempts, see that they have one cause, and requeue them with a mended input."""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import InvalidInputError, JobFailedError, Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import DeadLetterFilter, Projector, Store
from jobledger.workers import Worker


@task(queue="billing", max_attempts=1)
def charge(customer: str, cents: int) -> str:
    if cents <= 0:
        message = f"cannot charge {customer} {cents} cents"
        raise ValueError(message)
    return f"charged {customer} {cents} cents"


TASKS = TaskRegistry([charge])


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
    chosen = DeadLetterFilter(queue="billing")
    with Store.open(projection) as store:
        for group in store.dead_letter_groups(chosen=chosen):
            print(f"{group.count} dead letters like {group.job_id}: {group.error_type}: {group.error}")
        letters = store.dead_letters(chosen=chosen, order="oldest")

    try:
        await ledger.requeue("charge-0", edit={"cents": "a lot"}, tasks=TASKS)
    except InvalidInputError as error:
        print(f"refused: {error}")

    for letter in letters[:2]:
        await ledger.requeue(letter.job_id, edit={"cents": 100}, tasks=TASKS, reason="sign error", by="ada")
        job = await ledger.job(letter.job_id)
        print(await job.result(timeout_s=10))
    discarded = await ledger.discard(letters[2].job_id, reason="the customer left", by="ada")
    print(f"{discarded.id} is {discarded.state.value}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with EmbeddedServer(directory, port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TASKS)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                await fail(ledger)
                await mend(ledger, directory / "jobs.db")
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)

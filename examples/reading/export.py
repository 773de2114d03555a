"""Export the ledger, check the export without a server, find an event that was altered in it, and bring it back."""

import tempfile
from pathlib import Path

import anyio

from jobledger.audit.export import Selection, import_export, read_export, verify_export, write_export
from jobledger.ledger import MemoryLog, TaskRegistry, connect, task
from jobledger.ledger.nats.payloads import Stores
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="email")
async def send_welcome(user_id: int) -> str:
    return f"welcome mail sent to user {user_id}"


async def export(url: str, folder: Path) -> None:
    async with connect(url) as ledger:
        jobs = [await ledger.enqueue(send_welcome, number) for number in range(3)]
        worker = Worker(ledger, TaskRegistry([send_welcome]))
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            for job in jobs:
                await job.result(timeout_s=10)
            worker.stop()
        large = Stores(ledger.inputs, ledger.results)  # without it large inputs and results are left out
        manifest = await write_export(ledger.log, folder / "all", payloads=large)
        print(f"{manifest.count} events from {manifest.first_sequence} to {manifest.last_sequence}")
        one = await write_export(ledger.log, folder / "one", selection=Selection(job=jobs[0].id))
        print(f"{one.count} events of one job")


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with EmbeddedServer(folder / "server", port=0) as server:
            await export(server.url, folder)

        # From here on there is no server.
        print((await verify_export(folder / "all")).text().splitlines()[0])
        for message in read_export(folder / "one"):
            print(message.stream_sequence, message.subject.split(".")[4])

        empty = MemoryLog()
        print(await import_export(folder / "all", empty), "events are back")
        again = await write_export(empty, folder / "again")
        print("the same bytes:", again.digest == (await verify_export(folder / "all")).digest)

        file = next((folder / "all").glob("events-*.jsonl"))
        file.write_bytes(file.read_bytes().replace(b"user 1", b"user 9"))
        report = await verify_export(folder / "all")
        print(report.text().splitlines()[0])
        print(report.violations[0].sentence)


if __name__ == "__main__":
    anyio.run(main)

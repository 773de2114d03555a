"""Seal the ledger, keep the seal elsewhere, and find a history that was rewritten; needs the extra `seals`."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import anyio

from jobledger.audit.seals.keys import make_keys, read_signer, read_trusted
from jobledger.audit.seals.seals import read_published, seal_next
from jobledger.audit.verify import verify
from jobledger.audit.verify.seals import SealWitness, seals_as_witness
from jobledger.ledger import connect, task
from jobledger.ledger.server import EmbeddedServer


@task(queue="payments")
async def pay(account: str, cents: int) -> None: ...


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        key, kept = Path(folder) / "seal.pem", Path(folder) / "elsewhere.jsonl"
        public, _ = make_keys(key)
        trusted = read_trusted([public])
        async with EmbeddedServer(Path(folder) / "server", port=0) as server, connect(server.url) as ledger:
            for number in range(3):
                await ledger.enqueue(pay, f"account-{number}", cents=100)
            seal = await seal_next(ledger.log, read_signer(key), by="accounting", at=datetime.now(UTC))
            assert seal is not None
            kept.write_text(seal.line())
            print("sealed", seal.seal.from_sequence, "to", seal.seal.to_sequence)
            witness = await seals_as_witness(ledger.log, trusted=trusted)
            assert witness is not None
            print((await verify(ledger.log, witnesses=[witness])).text().splitlines()[0])

        # Somebody with access to the disk writes another history, sound in itself.
        async with EmbeddedServer(Path(folder) / "other", port=0) as server, connect(server.url) as ledger:
            for _ in range(3):
                await ledger.enqueue(pay, "account-mallory", cents=100)
            report = await verify(ledger.log)
            print("without the seal:", report.text().splitlines()[0])
            witness = SealWitness(read_published(kept), ledger.names, trusted=trusted, published=True)
            report = await verify(ledger.log, witnesses=[witness])
            print("with the seal:", report.violations[0].sentence)


if __name__ == "__main__":
    anyio.run(main)

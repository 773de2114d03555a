"""Exclude other code with a lock, and refuse a holder that was away too long by its fencing number."""

import logging
import tempfile
import threading
from pathlib import Path

import anyio

from jobledger.ledger import HeldLock, LockLostError, LockTimeoutError, connect, sync
from jobledger.ledger.server import EmbeddedServer


class Account:
    """What the lock guards. In a database: `UPDATE ... WHERE fencing_number <= :fencing_number`."""

    def __init__(self) -> None:
        self.balance = 100
        self.fencing_number = 0

    def withdraw(self, amount: int, held: HeldLock) -> bool:
        """Take money out; return whether the holder may still do so."""
        if held.fencing_number < self.fencing_number:
            print(f"refused {held.fencing_number}: the account has seen {self.fencing_number}")
            return False
        self.fencing_number = held.fencing_number
        self.balance -= amount
        print(f"withdrew {amount} with fencing number {held.fencing_number}")
        return True


def other_process(url: str, account: Account, taken_over: threading.Event) -> None:
    """Stand in for another process: blocking code with a connection of its own."""
    with sync.connect(url, name="other") as ledger:
        try:
            with ledger.lock("account", "42", wait_s=0.2):
                print("never printed")
        except LockTimeoutError as error:
            print(f"not now: {error}")
        with ledger.lock("account", "42", wait_s=10) as held:  # as soon as the holder's lease is over
            account.withdraw(20, held)
            taken_over.set()


async def main() -> None:
    account, taken_over = Account(), threading.Event()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer(Path(directory), port=0)
        async with server, connect(server.url, lease_s=1) as ledger:  # 15 s unless a ledger is made with less
            async with ledger.lock("account", "42") as held:
                account.withdraw(10, held)
            other = threading.Thread(target=other_process, args=(server.url, account, taken_over))
            try:
                async with ledger.lock("account", "42") as held:
                    account.withdraw(30, held)
                    other.start()
                    # Blocks the event loop, so that the lease is not renewed: as if this process were frozen.
                    taken_over.wait(timeout=15)
                    account.withdraw(30, held)
                    held.check()
            except LockLostError as error:
                print(f"lost: {error}")
            await anyio.to_thread.run_sync(other.join)
    print(f"balance {account.balance}")


if __name__ == "__main__":
    logging.getLogger("jobledger").setLevel(logging.CRITICAL)  # that a lease is lost is what this shows
    anyio.run(main)

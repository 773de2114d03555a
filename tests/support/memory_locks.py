"""Leases and hints in memory: what locks stand on, for tests that own the time at which a lease is over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.model.subjects import LockRef
from jobledger.ledger.nats.leases import LeaseLostError, WorkerInfo
from jobledger.ledger.nats.lock_hints import Hint, LockWatch


class MemoryLeases:
    """Keys that live until a test takes them away, or cuts the way to them."""

    user = ""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self.keys: dict[str, tuple[WorkerInfo, int]] = {}
        self.is_cut = False
        self._revision = 0

    def expire(self, worker: str) -> None:
        """End a lease as the bucket does."""
        del self.keys[worker]

    def _reach(self) -> None:
        if self.is_cut:
            raise ServerUnreachableError("cut by the test")

    async def duration_s(self) -> float:
        """Return what the test chose."""
        self._reach()
        return self._duration_s

    async def renew(self, info: WorkerInfo, revision: int) -> int:
        """Write a key on condition of its revision."""
        self._reach()
        if revision != (self.keys[info.worker][1] if info.worker in self.keys else 0):
            raise LeaseLostError(info.worker)
        self._revision += 1
        self.keys[info.worker] = (info, self._revision)
        return self._revision

    async def find(self, worker: str) -> WorkerInfo | None:
        """Return who lives."""
        self._reach()
        found = self.keys.get(worker)
        return None if found is None or found[0].stopped else found[0]


class MemoryHints:
    """Hints among the clients of one loop."""

    def __init__(self) -> None:
        self._watching: dict[LockRef, set[LockWatch]] = {}

    @contextlib.asynccontextmanager
    async def watch(self, ref: LockRef) -> AsyncGenerator[LockWatch, None]:
        """Listen for the length of the block."""
        watch = LockWatch()
        watching = self._watching.setdefault(ref, set())
        watching.add(watch)
        try:
            yield watch
        finally:
            watching.discard(watch)

    def tell(self, ref: LockRef, hint: Hint) -> None:
        """Let everybody hear it."""
        for watch in self._watching.get(ref, ()):
            watch.hear(hint.encode())

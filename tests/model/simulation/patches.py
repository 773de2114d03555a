"""What must not come from the machine during a schedule: names, random bytes, threads, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import socket
import sys
import warnings
from collections.abc import Generator
from typing import Any
from unittest import mock

from tests.model.simulation.loop import World

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.log import Log
from jobledger.ledger.nats import pauses
from jobledger.workers import worker as worker_module
from jobledger.workers.reactors import hosts
from jobledger.workers.reactors.reactor import Reactor
from jobledger.workers.reactors.reconciler import Reconciler

_RealRandom = random.Random
#: Ten minutes in the product; the simulation has no patience.
RECONCILE_S = 30.0


async def _as_given(_log: Log, config: dict[str, Any]) -> dict[str, Any]:
    """Let a lane that is made again hand out every dispatch there ever was, as a lane without a beginning does."""
    return config


class Idle:
    """Stands in for the watchdog, which watches real time from a thread, and for a reconciler with nothing to do."""

    name = "idle"

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()


class Sources:
    """The world that names and random numbers come from at present."""

    def __init__(self) -> None:
        self.world: World | None = None
        self._count = 0
        self._reconcile = True

    def begin(self, world: World, *, reconcile: bool) -> None:
        self.world = world
        self._reconcile = reconcile
        self._count = 0

    def new_reconciler(self, ledger: Ledger, **options: Any) -> Reactor:
        return Reconciler(ledger, grace_s=RECONCILE_S, **options) if self._reconcile else Idle()

    def token_hex(self, size: int = 8) -> str:
        self._count += 1
        return f"{self._count:0{2 * size}x}"

    def host(self) -> str:
        process = self.world.current if self.world is not None else None
        return process.name if process is not None else "nobody"

    def new_random(self, seed: Any = None) -> random.Random:
        self._count += 1
        return _RealRandom(self._count if seed is None else seed)


SOURCES = Sources()


def _pid() -> int:
    return 1


@contextlib.contextmanager
def patched() -> Generator[None, None, None]:
    """Own what is random and noisy, and collect garbage only where `collect` is called."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    collecting = gc.isenabled()
    gc.disable()
    with (
        mock.patch.object(secrets, "token_hex", SOURCES.token_hex),
        mock.patch.object(socket, "gethostname", SOURCES.host),
        mock.patch.object(os, "getpid", _pid),
        mock.patch.object(random, "Random", SOURCES.new_random),
        mock.patch.object(worker_module, "Watchdog", Idle),
        mock.patch.object(hosts, "Reconciler", SOURCES.new_reconciler),
        mock.patch.object(hosts, "FlowReactor", Idle),  # no job here has a limit
        mock.patch.object(pauses, "begin_at_living", _as_given),  # this server lets nobody read a whole lane
        # Coroutines of crashed processes are closed when nobody refers to them; some object, and nobody cares.
        mock.patch.object(sys, "unraisablehook", return_value=None),
        warnings.catch_warnings(action="ignore"),
    ):
        try:
            yield
        finally:
            SOURCES.world = None
            gc.collect()
            if collecting:
                gc.enable()
            logging.disable(disabled)

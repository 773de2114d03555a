"""The sealer: signs new events of the ledger, after a number of events or seconds; `audit seal` hosts one.

Several may run: each reads the newest seal, and if two seal the same range at once, the ledger accepts one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from jobledger.audit.seals.keys import Signer
from jobledger.audit.seals.seals import Seal, newest_seal, seal_next
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import (
    ConfigurationError,
    JetStreamDisabledError,
    LedgerError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.nats.connection import ConnectionLostError

logger = logging.getLogger("jobledger.workers.reactors.sealer")

EVENTS_DEFAULT: Final = 10_000
INTERVAL_S_DEFAULT: Final = 60.0
_INTERVAL_S_MAX: Final = 24 * 3600.0
_LOOKS_AN_INTERVAL: Final = 10
_LOOK_EVERY_S_MIN: Final = 0.1
_LOOK_EVERY_S_MAX: Final = 5.0
_CONNECT_S: Final = 30.0


class SealingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions for a due seal; the first one counts."""

    events: int = EVENTS_DEFAULT  #: events after the newest seal
    interval_s: float = INTERVAL_S_DEFAULT  #: seconds after the newest seal, if anything was added

    def __post_init__(self) -> None:
        """Check both values.

        Raises: ConfigurationError.
        """
        if self.events < 1:
            raise ConfigurationError(
                f"a seal is due after at least one event, got {self.events}: give 1 or more"
            )
        if not 0 < self.interval_s <= _INTERVAL_S_MAX:
            raise ConfigurationError(
                f"the interval of seals is above 0 and at most 86400 seconds, got {self.interval_s:g}"
            )


class Sealer:
    """A reactor that seals; `on_seal`, called in a thread with each seal recorded here, publishes it."""

    name = "sealer"

    def __init__(
        self,
        ledger: Ledger,
        signer: Signer,
        config: SealingConfig | None = None,
        *,
        on_seal: Callable[[Seal], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._signer = signer
        self._config = config or SealingConfig()
        self._on_seal = on_seal
        self._sealed_at = ledger.connection.loop.time()
        self._newest = 0  # stream sequence of the newest known seal

    async def run(self) -> None:
        """Make due seals until cancelled; survives losses of connection and server.

        Raises: ConnectionLostError if the connection is closed for good.
        """
        async with self._ledger.reader_leases.held("sealer"):
            await self._run()

    async def _run(self) -> None:
        connection = self._ledger.connection
        pause_s = min(max(self._config.interval_s / _LOOKS_AN_INTERVAL, _LOOK_EVERY_S_MIN), _LOOK_EVERY_S_MAX)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await connection.wait_connected(_CONNECT_S)
                while await self._is_due() and await self._seal():
                    pass
            except WrongSequenceError:
                continue  # another worker sealed it
            except (ConnectionLostError, JetStreamDisabledError, UnreachableError) as error:
                if connection.is_closed:
                    raise ConnectionLostError from error
            except LedgerError as error:
                logger.error("sealer: %s", error)  # noqa: TRY400 - a sentence

    async def _is_due(self) -> bool:
        """Return whether since the newest seal enough events came, or one event and enough time."""
        log, now = self._ledger.log, self._ledger.connection.loop.time()
        head = (await log.head()).last_sequence
        if head == self._newest:
            self._sealed_at = now  # nothing was added: the interval begins with the next event
            return False
        newest = await newest_seal(log)
        if newest is not None and newest.stream_sequence != self._newest:
            self._newest, self._sealed_at = newest.stream_sequence, now
        sealed_through = newest.seal.to_sequence if newest is not None else 0
        return (
            head - sealed_through >= self._config.events or now - self._sealed_at >= self._config.interval_s
        )

    async def _seal(self) -> bool:
        """Seal once; return whether there was something to seal."""
        stamp = self._ledger.stamp()
        seal = await seal_next(self._ledger.log, self._signer, by=stamp.by, at=stamp.at)
        self._sealed_at = self._ledger.connection.loop.time()
        if seal is None:
            return False
        self._newest = seal.stream_sequence
        if self._on_seal is not None:
            await asyncio.to_thread(self._on_seal, seal)
        return True

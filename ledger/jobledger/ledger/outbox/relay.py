"""The relay: hands the rows of an outbox to the ledger, and deletes each after its job is there.

It may be killed at any point: the id of a job is in its row, so what is handed over again is found, not made again. Rows are
read without a lock: several relays at once only do the same work twice, and the lease lets one at a time do it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    ForeignLoopError,
    InvalidError,
    JetStreamDisabledError,
    LedgerClosedError,
    LedgerError,
    LedgerFullError,
    LockLostError,
    LockTimeoutError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.named.book import find_announced
from jobledger.ledger.outbox.database import OutboxDatabase, OutboxRow
from jobledger.ledger.signature import ReadsInput
from jobledger.ledger.written_orders import WrittenOrder

logger = logging.getLogger("jobledger.outbox")

_SCOPE: Final = "outbox"  #: of the locks by which relays take turns
_TURN_S: Final = 60.0  #: how long a relay waits for its turn before it begins to wait again
_PAUSE_S: Final = 0.2  #: after a first failure; each one more doubles it
_PAUSE_S_MAX: Final = 5.0
_REFUSAL_LENGTH_MAX: Final = 2_000
#: What passes: the server or the database comes back, the ledger gets room, somebody else was quicker.
_PASSING: Final = (UnreachableError, LedgerFullError, JetStreamDisabledError, WrongSequenceError)
#: What ends the relay: there is no ledger to speak to any more.
_ENDS: Final = (LedgerClosedError, ForeignLoopError)
#: What is wrong with a row, unless it is one of those above.
_OF_ROW: Final = (InvalidError, NotFoundError, RefusedError, CorruptLedgerError)

Outcome = Literal["created", "existing", "refused"]


class RelayCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay did."""

    created: int = 0  #: jobs
    existing: int = 0  #: rows whose job was in the ledger already, or a job that is unique in its place
    refused: int = 0  #: rows that stay in the table, with the reason

    def plus(self, other: RelayCounts) -> RelayCounts:
        """Return the sums."""
        return RelayCounts(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )


class Relay:
    """Relays one outbox to one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        database: OutboxDatabase,
        *,
        name: str = "main",
        batch_max: int = 500,
        poll_s: float = 1.0,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`name`: of the outbox among those of this ledger. `on_turn` is called whenever the relay's turn begins.

        `poll_s`: how often it looks where nothing notifies it.
        """
        self._ledger = ledger
        self._database = database
        self.name = check_token("outbox", name)
        self._batch_max = batch_max
        self._poll_s = poll_s
        self._on_turn = on_turn
        self._enqueuer = Enqueuer(ledger, config=ledger.config, clock=ledger.clock, tracing=ledger.tracing)
        self._pause_s = 0.0  #: of the last failure; 0: none since the last success
        self.done = RelayCounts()  #: since it began
        self.failures = 0  #: since it began: how often it had to wait, as something was away or full

    @property
    def is_waiting(self) -> bool:
        """Whether it waits since something is away or full."""
        return self._pause_s > 0.0

    async def run(self) -> None:
        """Relay until cancelled, whenever it is this relay's turn.

        Raises: LedgerClosedError, PermissionRefusedError, OutboxNotFoundError.
        """
        while True:
            try:
                async with self._ledger.lock(_SCOPE, self.name, wait_s=_TURN_S):
                    self._on_turn()
                    await self._serve()
            except LockTimeoutError:
                self._recover()  # the ledger is there, as it tells who has the turn
                logger.info("another relay of outbox %s has its turn", self.name)
            except (*_PASSING, LockLostError) as error:
                await self._pause(error)

    async def once(self) -> RelayCounts:
        """Relay what waits now, and return what came of it.

        Raises: LockTimeoutError while another relay has its turn; UnreachableError, LedgerFullError.
        """
        async with self._ledger.lock(_SCOPE, self.name):
            self._on_turn()
            while await self._batch():
                pass
        return self.done

    async def _serve(self) -> None:
        while True:
            try:
                if not await self._batch():
                    await self._database.wait(self._poll_s)
            except _PASSING as error:
                await self._pause(error)
            else:
                self._recover()

    async def _pause(self, error: LedgerError) -> None:
        self.failures += 1
        if not self._pause_s:
            logger.warning("outbox %s waits: %s", self.name, error)
        self._pause_s = min(self._pause_s * 2 or _PAUSE_S, _PAUSE_S_MAX)
        await asyncio.sleep(self._pause_s)

    def _recover(self) -> None:
        if self._pause_s:
            logger.info("outbox %s goes on", self.name)
        self._pause_s = 0.0

    async def _batch(self) -> int:
        """Relay the oldest rows; return how many left the line.

        Raises: one of `_PASSING`, after the rows that the ledger has are deleted.
        """
        rows = await self._database.waiting(self._batch_max)
        answers = await asyncio.gather(*map(self._relay, rows), return_exceptions=True)
        stored = [
            row.number for row, answer in zip(rows, answers, strict=True) if answer in ("created", "existing")
        ]
        if stored:
            await self._database.delete(stored)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        told = {name: sum(answer == name for answer in answers) for name in RelayCounts.__struct_fields__}
        self.done = self.done.plus(RelayCounts(**told))
        if failed:
            # One that no wait helps comes before those that pass.
            raise min(failed, key=lambda error: isinstance(error, _PASSING))
        return len(rows)

    async def _relay(self, row: OutboxRow) -> Outcome:
        try:
            written = WrittenOrder.read(row.text)
            _, created = await self._enqueuer.one_written(written, self._signature_of)
        except (*_PASSING, *_ENDS):
            raise
        except _OF_ROW as error:
            await self._refuse(row, str(error))
            return "refused"
        except Exception as error:  # whatever it is: no row may hold up those behind it
            logger.exception("row %d of outbox %s", row.number, self.name)
            await self._refuse(row, f"the relay's log has the traceback: {type(error).__name__}: {error}")
            return "refused"
        return "created" if created else "existing"

    async def _refuse(self, row: OutboxRow, sentence: str) -> None:
        logger.error("row %d of outbox %s is put aside: %s", row.number, self.name, sentence)
        await self._database.refuse(row.number, sentence[:_REFUSAL_LENGTH_MAX])

    async def _signature_of(self, task: str) -> ReadsInput:
        ledger = self._ledger
        found = await find_announced(ledger.patience, ledger.announced, task, unknown_ok=True)
        return found.signature

"""The keeper of log lines of running attempts: by attempt, in the bucket LOGS.

An attempt has no log before its code logs a line, and no attempt waits for the store. If a log cannot be stored, the
worker logs a warning, and its jobs go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.logs import job_filter, prints
from jobledger.ledger.model.errors import LedgerError, UnreachableError
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.trace import trace_id
from jobledger.ledger.nats.attempt_logs import KeptLine, KeptLog, make_bucket, write_log
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.log_lines import AttemptLog
from jobledger.workers.config import WorkerConfig

logger = logging.getLogger("jobledger.workers.attempt.logs")

#: How often the log of an attempt that runs is stored, for a reader who follows the log.
_EVERY_S: Final = 1.0
_AT_ONCE: Final = 32
_WAITING_MAX: Final = 256  #: logs of ended attempts that wait for the server; more are lost
_CLOSE_S: Final = 2.0
_OURS: Final = "jobledger"
_TASKS: Final = "jobledger.task"  #: the logger behind `Context.logger`


class LogKeeper(logging.Handler):
    """A handler of the root logger, which stores the records of the attempts of one worker."""

    def __init__(
        self, ledger: Ledger, config: WorkerConfig, running: Callable[[], Mapping[JobRef, Attempt]]
    ) -> None:
        """`running`: the attempts whose records are kept; `config`: how much of each, and whether prints are kept."""
        super().__init__()
        self._ledger = ledger
        self._bytes_max = config.log_bytes_max  #: most bytes of an attempt's log; 0: none is kept
        self._running = running
        self._with_prints = config.log_prints
        self._formatter = logging.Formatter()
        self._waiting: dict[Attempt, None] = {}  #: attempts whose logs are to be stored; an ordered set
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()  #: set when an attempt ended, since somebody may look for its log now
        self._is_made = False  #: whether the bucket exists

    def start(self) -> None:
        """Keep records from now on."""
        if self._bytes_max:
            logging.getLogger().addHandler(self)
            if self._with_prints:
                prints.listen(self._on_print)

    def _on_print(self, text: str) -> None:
        """Keep a line that an attempt printed, independent of loggers' levels; no other handler gets it."""
        fields = {"name": prints.LOGGER, "msg": text, "levelno": logging.INFO, "levelname": "INFO"}
        self.handle(logging.makeLogRecord(fields))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that the code of an attempt made; from any thread."""
        attempt = job_filter.current.get()
        if not isinstance(attempt, Attempt) or _is_ours(record.name):
            return
        if attempt.job.order.key:  # its lines may hold data that must be erasable
            return
        if self._running().get(attempt.ref) is not attempt:  # the attempt is another worker's, or has ended
            return
        try:
            self._keep(attempt, record)
        except Exception:  # noqa: BLE001 - whatever a record's arguments raise, as for other handlers
            self.handleError(record)

    def _keep(self, attempt: Attempt, record: logging.LogRecord) -> None:
        line = KeptLine(
            at=record.created,
            level=record.levelname.lower(),
            logger=record.name,
            step=job_filter.step.get(),
            text=self._formatter.format(record),
        )
        log = attempt.control.log  # `handle` holds a lock: no other thread creates a log now
        if log is None:
            log = attempt.control.log = AttemptLog(self._bytes_max)
        if log.add(line):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._ledger.connection.loop.call_soon_threadsafe(self._on_change, attempt)

    def _on_change(self, attempt: Attempt) -> None:
        if len(self._waiting) < _WAITING_MAX:
            self._waiting[attempt] = None
        self._changed.set()

    def on_end(self, attempt: Attempt) -> None:
        """Store the log of an attempt that has ended, soon and for the last time."""
        if attempt.control.log is not None:
            attempt.control.log.ended = True
        self._on_change(attempt)
        self._hurry.set()

    async def run(self) -> None:
        """Store changed logs until cancelled."""
        while True:
            await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await self._hurry.wait()
            self._changed.clear()
            self._hurry.clear()
            await self._store_all()

    async def end(self) -> None:
        """Stop keeping records, and store waiting logs, within a limit."""
        logging.getLogger().removeHandler(self)
        prints.leave(self._on_print)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._store_all()

    async def _store_all(self) -> None:
        while self._waiting:
            some = list(self._waiting)[:_AT_ONCE]
            for attempt in some:
                del self._waiting[attempt]
            try:
                await self._store(some)
            except UnreachableError as error:
                self._is_made = False
                level = self._ledger.connection.outage.level(error)
                logger.log(level, "what tasks logged is stored later: %s", error)
                for attempt in some:
                    self._on_change(attempt)
                return
            except LedgerError as error:
                self._is_made = False
                logger.warning("what tasks logged cannot be kept, their work goes on: %s", error)

    async def _store(self, attempts: list[Attempt]) -> None:
        ledger = self._ledger
        if not self._is_made:
            config = ledger.config
            await make_bucket(
                ledger.inbox,
                ledger.names,
                ledger_bytes_max=config.ledger_bytes_max,
                replicas=config.replicas,
            )
            self._is_made = True
        stored = await asyncio.gather(*map(self._store_one, attempts), return_exceptions=True)
        for each in stored:
            if each is not None:
                raise each

    async def _store_one(self, attempt: Attempt) -> None:
        job, log = attempt.job, attempt.control.log
        assert log is not None, "only an attempt that logged something waits"
        has_ended = log.ended  # read before the lines, as none comes after the end
        lines, cut = log.taken()
        kept = KeptLog(
            attempt=job.attempts_count,
            worker=attempt.identity,
            trace=trace_id(job.trace),
            lines=lines,
            cut=cut,
            ended=has_ended,
        )
        await write_log(self._ledger.inbox, self._ledger.names, attempt.ref, job.claim_epoch, kept)


def _is_ours(name: str) -> bool:
    if name == _TASKS or name.startswith(f"{_TASKS}."):
        return False
    return name == _OURS or name.startswith(f"{_OURS}.")

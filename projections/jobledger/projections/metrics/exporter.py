"""The exporter of a whole ledger's metrics: it keeps a projection up to date and answers scrapes from it.

`run` belongs to the event loop; `collect` and `health` are for the threads of a `MetricsServer`. Several exporters may
run: their answers are the same, since they count nothing themselves.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec
from prometheus_client.core import Metric

from jobledger.ledger.client import Ledger
from jobledger.ledger.metrics.exposition import info, value, values
from jobledger.ledger.model.errors import ConfigurationError, LedgerError, NotFoundError
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.projections.errors import (
    EventGapError,
    PositionMismatchError,
    ProjectionError,
    UnfitProjectionError,
)
from jobledger.projections.metrics import names
from jobledger.projections.metrics.facts import FACTS_S, ServerFacts, server_facts
from jobledger.projections.metrics.figures import Figures, read_figures
from jobledger.projections.metrics.metrics import (
    LABEL_VALUES_MAX,
    Labels,
    audit_metrics,
    figures_metrics,
    lane_metrics,
    ledger_metrics,
    place_metrics,
    wanted_metrics,
)
from jobledger.projections.projector import Position, Projector, ProjectorConfig
from jobledger.projections.queries.store import Store
from jobledger.projections.snapshots import Snapshots

logger = logging.getLogger("jobledger.exporter")

_RESTART_S_FIRST: Final = 0.5
_RESTART_S_MAX: Final = 30.0
_GRACE_S: Final = 1.0  #: added to the time limit of the questions themselves
_CATCH_UP_ROUNDS_MAX: Final = 20
_BUSY_S: Final = 2.0
_DIAGNOSED_S: Final = 10.0  #: how long counts of diagnoses are reused
_VALUES_MAX: Final = 10_000

T = TypeVar("T")


class ExporterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the series shown, and of the lag."""

    label_values_max: int = LABEL_VALUES_MAX  #: queues, tasks and so on that have series of their own
    lag_s_max: float = 30.0  #: a projection further behind makes /healthz red

    def __post_init__(self) -> None:
        """Check every value.

        Raises: ConfigurationError.
        """
        if type(self.label_values_max) is not int or not 1 <= self.label_values_max <= _VALUES_MAX:
            message = f"label_values_max must be a whole number from 1 to {_VALUES_MAX}, got {self.label_values_max!r}"
            raise ConfigurationError(message)
        if not self.lag_s_max > 0:
            raise ConfigurationError(f"lag_s_max must be above 0, got {self.lag_s_max!r}")


class _ServerAnswer(msgspec.Struct, frozen=True):
    """The server's answer, or why there is none, and the time of it by the monotonic clock."""

    at: float
    facts: ServerFacts | None
    reason: str = ""
    diagnoses: Mapping[str, int] = {}  #: number of diagnoses by kind; empty if not known


class Exporter:
    """Follows one ledger into one projection file, and collects."""

    def __init__(
        self,
        ledger: Ledger,
        path: Path,
        config: ExporterConfig | None = None,
        *,
        followed: Callable[[], str] | None = None,
        diagnose: Callable[[Ledger, Path], Awaitable[Mapping[str, int]]] | None = None,
    ) -> None:
        """Begin with nothing read.

        `followed`: for a file that another process keeps up to date: returns why it does not; "" while it does.
        `diagnose`: counts diagnoses by kind, from the rows in the file.
        """
        self._diagnose = diagnose
        self._told_counts: tuple[float, Mapping[str, int]] = (float("-inf"), {})
        self._ledger = ledger
        self._followed = followed
        self._path = path
        self._config = config or ExporterConfig()
        self._projector: Projector | None = None
        self._position = 0  # position that was read last
        self._stopped = "the projection is not followed yet"  # why it is not followed; "" while it is
        self._agrees = True  # False once a projector found that ledger and file have different pasts
        self._is_whole = False  # True once the rows reached the ledger's head
        self._told_up_to = 0  # newest stream sequence in the counters shown
        self._asking = threading.Lock()
        self._asked = _ServerAnswer(float("-inf"), None)
        self._answered_at = time.monotonic()

    # On the event loop.

    async def run(self) -> NoReturn:
        """Follow the ledger until cancelled; on an error `health` reports it, and the projector starts again.

        Raises: UnfitProjectionError.
        """
        async with self._ledger.reader_leases.held("exporter"):
            await self._follow_again()

    async def _follow_again(self) -> NoReturn:
        pause_s = _RESTART_S_FIRST
        while True:
            began = time.monotonic()
            try:
                await self.follow()
            except UnfitProjectionError:
                raise  # the path itself is wrong: another try does not help
            except Exception as error:  # any error: a scrape shows it, and the next try may succeed
                if not isinstance(error, ProjectionError | LedgerError | ConnectionLostError | OSError):
                    logger.exception("the projector failed")
                self._agrees = self._agrees and not isinstance(error, PositionMismatchError | EventGapError)
                self._stopped = f"the projection is not followed: {str(error) or 'the connection was lost'}"
                logger.warning("%s", self._stopped)
            if time.monotonic() - began > _RESTART_S_MAX:
                pause_s = _RESTART_S_FIRST
            await asyncio.sleep(pause_s)
            pause_s = min(_RESTART_S_MAX, 2 * pause_s)

    async def follow(self) -> NoReturn:
        """Follow the ledger until cancelled; an error that stops the projector is raised.

        Raises: ProjectionError, in all its kinds, and what `Log.read` raises.
        """
        with Projector(self._ledger.log, self._path, snapshots=Snapshots(self._path)) as projector:
            self._projector = projector
            try:
                await self._catch_up(projector)
                self._stopped, self._agrees = "", True
                await projector.run()
            finally:
                self._projector = None

    async def _catch_up(self, projector: Projector) -> None:
        """Reach the ledger's head before counters are shown: while they catch up they would look like a sudden rush."""
        if not self._is_whole:
            self._stopped = "the projection catches up with the ledger"
        position = await projector.prepare()
        for _ in range(_CATCH_UP_ROUNDS_MAX):
            position = await projector.catch_up()
            behind = (await self._ledger.log.head()).last_sequence - position.stream_sequence
            if behind < projector.config.batch_events_max:  # close enough: following reads the rest
                break
        if position.missing and not self._is_whole:
            logger.warning("%s", position.missing)
        self._is_whole = True

    async def _questions(self) -> tuple[ServerFacts, Mapping[str, int]]:
        began = time.monotonic()
        facts = await self._facts()
        return facts, await self._diagnoses(began)

    async def _diagnoses(self, began: float) -> Mapping[str, int]:
        """Return counts of diagnoses, reused for some seconds; none if the answer takes too long."""
        told_at, counts = self._told_counts
        if self._diagnose is None or not self._is_whole or began - told_at < _DIAGNOSED_S:
            return counts
        try:
            async with asyncio.timeout(max(0.0, FACTS_S - (time.monotonic() - began))):
                counts = await self._diagnose(self._ledger, self._path)
        except (ProjectionError, LedgerError, ConnectionLostError, TimeoutError) as error:
            logger.debug("what hurts cannot be told: %s", error)
            counts = dict[str, int]()
        self._told_counts = (began, counts)
        return counts

    async def _facts(self) -> ServerFacts:
        known = self._projector.position if self._projector is not None else None
        reached = self._position if known is None else known.stream_sequence
        return await server_facts(self._ledger, max(reached, self._position))

    # In a scrape's thread.

    def health(self) -> str:
        """Return "" while the answers of `collect` are up to date, else the reason in a sentence."""
        self._look_elsewhere()
        place = self._read(Store.position)
        return self._judge(self._ask(place), place)

    def collect(self) -> Iterable[Metric]:
        """Return every family; one whose values are unknown at this moment has no sample."""
        began = time.monotonic()
        self._look_elsewhere()
        now = self._ledger.clock.now()
        figures = self._read(lambda store: read_figures(store, self._config.label_values_max, now))
        place = figures.position if isinstance(figures, Figures) else figures
        asked = self._ask(place)  # after the read of the rows, so that the head is not older than the rows
        self._look_how_far(asked, place)
        yield info(names.BUILD, {"version": VERSION, "ledger_environment": self._ledger.names.environment})
        yield value(names.UP, float(not self._judge(asked, place)))
        yield value(names.FOLLOWING, float(not self._stopped))
        yield value(names.SILENCE, 0.0 if asked.facts is not None else time.monotonic() - self._answered_at)
        if isinstance(figures, Figures):
            yield from self._told(figures, asked.facts, asked.diagnoses)
        yield value(names.COLLECT, time.monotonic() - began)

    def _look_elsewhere(self) -> None:
        if self._followed is not None:
            self._stopped = self._followed()

    def _look_how_far(self, asked: _ServerAnswer, place: Position | str) -> None:
        """Note once that a file which another process keeps up to date has reached the head; see `_catch_up`."""
        if self._followed is not None and asked.facts is not None and isinstance(place, Position):
            behind = asked.facts.head_sequence - place.stream_sequence
            self._is_whole = self._is_whole or behind < ProjectorConfig().batch_events_max

    def _told(
        self, figures: Figures, facts: ServerFacts | None, diagnoses: Mapping[str, int]
    ) -> Iterator[Metric]:
        yield from place_metrics(figures.position)
        if facts is not None:
            is_ahead = figures.position.stream_sequence > facts.head_sequence
            yield value(names.AGREES, float(self._agrees and not is_ahead))
            yield from ledger_metrics(facts, None if is_ahead else figures.position.stream_sequence)
            yield from audit_metrics(facts, self._ledger.clock.now())
            yield values(names.DIAGNOSES, (((kind,), number) for kind, number in diagnoses.items()))
        if not self._is_whole or figures.position.stream_sequence < self._told_up_to:
            return  # the file is being rebuilt and is still behind the counters last shown
        self._told_up_to = figures.position.stream_sequence
        yield from figures_metrics(figures, self._ledger.clock.now())
        if facts is not None:
            yield from lane_metrics(facts, Labels(figures.shown, self._config.label_values_max))
            yield from wanted_metrics(figures, facts)

    def _ask(self, place: Position | str) -> _ServerAnswer:
        """Ask the server through the event loop; one answer serves all threads that wait at this moment."""
        began = time.monotonic()
        if isinstance(place, Position):
            self._position = place.stream_sequence
        if not self._asking.acquire(timeout=FACTS_S + _GRACE_S):
            return _ServerAnswer(time.monotonic(), None, "the exporter is busy")
        try:
            if self._asked.at < began:  # that question is older than ours, so its answer is too old
                self._asked = self._answer()
            return self._asked
        finally:
            self._asking.release()

    def _answer(self) -> _ServerAnswer:
        at, question = time.monotonic(), self._questions()
        try:
            future = asyncio.run_coroutine_threadsafe(question, self._ledger.connection.loop)
        except RuntimeError:  # the loop is closed
            question.close()
            return _ServerAnswer(at, None, "the exporter is stopping")
        try:
            facts, diagnoses = future.result(FACTS_S + _GRACE_S)
        except NotFoundError as error:  # the ledger no longer exists
            return _ServerAnswer(at, None, str(error))
        except LedgerError as error:
            return _ServerAnswer(at, None, f"the server does not answer: {error}")
        except ValueError as error:
            return _ServerAnswer(at, None, f"the server's answer cannot be read: {error}")
        except (TimeoutError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            return _ServerAnswer(at, None, "the exporter is busy")
        self._answered_at = time.monotonic()
        return _ServerAnswer(at, facts, diagnoses=diagnoses)

    def _read(self, what: Callable[[Store], T]) -> T | str:
        """Read the present file, which a rebuild may just have put there; return the reason if it cannot be read."""
        try:
            with Store.open(self._path, busy_timeout_s=_BUSY_S) as store:
                return what(store)
        except ProjectionError as error:
            return str(error)

    def _judge(self, asked: _ServerAnswer, place: Position | str) -> str:
        if asked.facts is None:
            return asked.reason
        if self._stopped:
            return self._stopped
        if isinstance(place, str):
            return f"the projection cannot be read: {place}"
        behind = asked.facts.head_sequence - place.stream_sequence
        if behind < 0:
            head = asked.facts.head_sequence
            return f"the ledger ends at stream sequence {head}, and {place.stream_sequence} was counted: it lost its end"
        lag_s = asked.facts.lag_s
        if behind > 0 and (lag_s is None or lag_s > self._config.lag_s_max):
            since = "" if lag_s is None else f", {lag_s:,.0f} s"
            return f"the projection is {behind:,} events{since} behind the ledger"
        return ""

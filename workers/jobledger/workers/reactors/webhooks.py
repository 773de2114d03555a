"""The reactor of webhooks: one reader for each active webhook, as its chain says. The gateway hosts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.limits.definitions import define_key
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Webhook
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.named_chain import histories, look
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.nats.consumer import Source
from jobledger.ledger.nats.durables import delete_consumer, find_consumer, list_consumers
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.webhooks.deliveries import (
    GENERATIONS_MAX,
    LIMIT,
    SLOTS,
    generation,
    make,
    matches,
    subjects,
)
from jobledger.ledger.webhooks.terms import (
    ACK_WAIT_S,
    End,
    Term,
    TermName,
    current,
    is_drained,
    named_by,
    settings_of,
    term_of,
)
from jobledger.workers.reactors.reactor import ConsumerReactor, Later, host
from jobledger.workers.services import end

# A reader of the events in one term of a webhook; it makes a job for each event that matches.

_IN_FLIGHT_MAX = 64


class _TermReactor(ConsumerReactor):
    """Makes the job of each event that matches a webhook within one term, then acknowledges the event.

    Events come at least once, in any order, in any number of processes: a job is begun once, by its id.
    """

    def __init__(
        self, ledger: Ledger, term: Term, task_webhooks: Callable[[], Mapping[str, Webhook]]
    ) -> None:
        """`task_webhooks`: returns the webhooks whose targets are tasks, by name."""
        super().__init__(
            ledger, f"webhook {term.name.webhook}", in_flight_max=_IN_FLIGHT_MAX, ack_wait_s=ACK_WAIT_S
        )
        self.term = term
        self._task_webhooks = task_webhooks
        self._filters = subjects(ledger.names, term.definition)

    async def find(self) -> Source:
        """Return the consumer of the term's events; wait for ever if the term has ended and its consumer is gone."""
        name, stream = self.term.name, self.ledger.names.ledger_stream
        if (
            self.term.end is not None
            and await find_consumer(self.ledger.inbox, stream, name.consumer) is None
        ):
            await asyncio.Event().wait()  # a new consumer would deliver everything from its beginning
        return Source(stream=stream, consumer=name.consumer, filters=self._filters)

    def settings(self, source: Source) -> dict[str, Any]:
        """Return the settings of the consumer, which begins with the term."""
        return settings_of(self.term.name, source.filters)

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Keep all events except those of webhook deliveries, which no webhook delivers."""
        words = delivery.subject.split(b".", 3)
        is_delivery = len(words) > 3 and words[1] == b"job" and words[2] == DELIVERIES_QUEUE.encode()  # noqa: PLR2004
        return None if is_delivery else delivery

    async def react(self, delivery: Delivery) -> Later | None:
        """Make the job of an event that matches."""
        message, name = delivery.read(), self.term.name.webhook
        definition = self.term.definition
        if not matches(definition, message) or await self._is_over(delivery.stream_sequence):
            return None
        if definition.target.task and await self._is_circle(message):
            return None
        if await make(self.ledger, name, definition, message):
            logger.debug("webhook %s: a job for stream sequence %d", name, message.stream_sequence)
        return None

    async def _is_over(self, sequence: int) -> bool:
        """Return whether the term had ended when an event was stored; looked up each time, since others may end it."""
        end = self.term.end or await self._looked_up()
        return end is not None and sequence > end.sequence

    async def _looked_up(self) -> End | None:
        log, name = self.ledger.log, self.term.name
        state = (await look(log, WEBHOOK, name.webhook)).state
        if state is None or state.since == name.since:
            return None
        states = (await histories(log, WEBHOOK, name.webhook)).get(name.webhook)
        return term_of(name, states).end if states else None

    async def _is_circle(self, message: Any) -> bool:
        count = await generation(self.ledger.log, message, self._task_webhooks())
        if count < GENERATIONS_MAX:
            return False
        job = message.event.job if isinstance(message, StoredEvent) else ""
        logger.error(
            "webhook %s: no job for stream sequence %d of job %s: %d webhooks in a row led to it, and they go round in a "
            "circle",
            self.term.name.webhook,
            message.stream_sequence,
            job,
            count,
        )
        return True


logger = logging.getLogger("jobledger.workers.reactors.webhooks")

LOOK_EVERY_S: Final = 1.0
_LOOK_WHOLE_EVERY: Final = 60  #: number of looks between two whole ones
#: How long a consumer stays after its term ended: by then every process has seen the end, and does not make it again.
_STAYS: Final = timedelta(seconds=10)


class WebhookReactor:
    """Makes a job for each event that matches a webhook; `host` keeps it running.

    Several processes may run it: they share the durable consumers, and if two do the same, the ledger accepts it once.
    """

    name = "webhooks"

    def __init__(self, ledger: Ledger, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._ledger = ledger
        self._look_every_s = look_every_s
        self._readers: dict[TermName, _TermReactor] = {}
        self._tasks: dict[TermName, asyncio.Task[None]] = {}
        self._task_webhooks: Mapping[str, Webhook] = {}
        self._newest = -1  #: stream sequence of the newest event of any webhook at the last look
        self._ending = False  #: whether an ended term still had to be drained then

    async def run(self) -> None:
        """React until cancelled.

        Raises: LedgerError, UnreachableError, after which it may be run again.
        """
        looks = 0
        try:
            while True:
                await self.look(whole=looks % _LOOK_WHOLE_EVERY == 0)
                looks += 1
                await asyncio.sleep(self._look_every_s)
        finally:
            tasks = list(self._tasks.values())
            self._readers.clear()
            self._tasks.clear()
            await end(*tasks)

    async def look(self, *, whole: bool = False) -> None:
        """Start and stop readers of terms, if a webhook changed since the last look; `whole`: in any case.

        Raises: LedgerError, UnreachableError.
        """
        log = self._ledger.log
        newest = await log.newest_sequence(WEBHOOK.everything(log.names))
        if newest == self._newest and not (whole or self._ending):
            return
        known_to = (await log.head()).last_sequence
        known = await histories(log, WEBHOOK)
        self._task_webhooks = {
            name: states[-1] for name, states in known.items() if states[-1].definition.target.task
        }
        terms = current(known)
        if terms:
            await define_key(log, LIMIT, "", Terms(slots=SLOTS), self._ledger.stamp)
        ending = await self._drained(known, terms, known_to)
        await self._read(terms | ending)
        self._newest, self._ending = newest, bool(ending)

    async def _drained(
        self, known: Mapping[str, Sequence[Webhook]], terms: Mapping[TermName, Term], known_to: int
    ) -> dict[TermName, Term]:
        """Delete the consumers of ended terms without events left; return the ended terms with events left.

        A term that began after stream sequence `known_to` is left to the next look, since `known` may lack it.
        """
        ledger, left = self._ledger, dict[TermName, Term]()
        stream = ledger.names.ledger_stream
        for info in await list_consumers(ledger.inbox, stream):
            name = named_by(info.name)
            if name is None or name in terms or name.since > known_to:
                continue
            states = known.get(name.webhook)
            term = term_of(name, states) if states else None
            if term is not None and not self._may_go(info, term):
                left[name] = term
                continue
            await self._stop(name)
            await delete_consumer(ledger.inbox, stream, info.name)
            logger.debug("consumer %s goes: its term has ended", info.name)
        return left

    def _may_go(self, info: ConsumerInfo, term: Term) -> bool:
        if term.end is None:
            return False
        return is_drained(info, term.end) and self._ledger.clock.now() - term.end.at >= _STAYS

    async def _read(self, terms: Mapping[TermName, Term]) -> None:
        """Read each of these terms, and no others."""
        for name in [name for name in self._tasks if name not in terms]:
            await self._stop(name)
        for name, term in terms.items():
            reader = self._readers.get(name)
            if reader is None:
                self._readers[name] = reader = _TermReactor(self._ledger, term, lambda: self._task_webhooks)
                task = asyncio.create_task(
                    host(self._ledger, reader), name=f"{reader.name} since {name.since}"
                )
                self._tasks[name] = task
            reader.term = term

    async def _stop(self, name: TermName) -> None:
        self._readers.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            await end(task)

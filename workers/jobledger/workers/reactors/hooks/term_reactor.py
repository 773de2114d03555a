"""What reads the events of one term of a webhook, and makes a job of each one that matches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Webhook
from jobledger.ledger.model.named_chain import histories, look
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.nats.consumer import Source
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.webhooks.deliveries import GENERATIONS_MAX, generation, make, matches, subjects
from jobledger.ledger.webhooks.terms import ACK_WAIT_S, End, Term, settings_of, term_of
from jobledger.workers.reactors.reactor import ConsumerReactor, Later

logger = logging.getLogger("jobledger.workers.reactors.webhooks")

_IN_FLIGHT_MAX = 64


class TermReactor(ConsumerReactor):
    """Makes the job of each event that matches a webhook within one term, then acknowledges the event.

    At least once, in any order, in as many processes as there are: a job is begun once, by its id.
    """

    def __init__(
        self, ledger: Ledger, term: Term, task_webhooks: Callable[[], Mapping[str, Webhook]]
    ) -> None:
        """`task_webhooks`: returns those whose targets are tasks, by name."""
        super().__init__(
            ledger, f"webhook {term.name.webhook}", in_flight_max=_IN_FLIGHT_MAX, ack_wait_s=ACK_WAIT_S
        )
        self.term = term
        self._task_webhooks = task_webhooks
        self._filters = subjects(ledger.names, term.definition)

    async def find(self) -> Source:
        """Return the consumer of the term's events; wait for ever where the term has ended and its consumer is gone."""
        name, stream = self.term.name, self.ledger.names.ledger_stream
        if (
            self.term.end is not None
            and await find_consumer(self.ledger.inbox, stream, name.consumer) is None
        ):
            await asyncio.Event().wait()  # a new consumer would deliver everything from its beginning
        return Source(stream=stream, consumer=name.consumer, filters=self._filters)

    def settings(self, source: Source) -> dict[str, Any]:
        """Return the settings of the consumer, which begins where the term does."""
        return settings_of(self.term.name, source.filters)

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Keep all events but those of webhook deliveries, which no webhook delivers."""
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
        """Return whether the term had ended when an event was stored; looked up for each, since others may end it."""
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

"""The reactor of webhooks: one reader for each webhook that is active, begun and ended as its chain says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.limits.definitions import define_key
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Webhook
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.named_chain import histories
from jobledger.ledger.nats.durables import delete_consumer, list_consumers
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.webhooks.deliveries import LIMIT, SLOTS
from jobledger.ledger.webhooks.terms import Term, TermName, current, is_drained, named_by, term_of
from jobledger.workers.reactors.hooks.term_reactor import TermReactor
from jobledger.workers.reactors.reactor import host
from jobledger.workers.services import end

logger = logging.getLogger("jobledger.workers.reactors.webhooks")

LOOK_EVERY_S: Final = 1.0
_LOOK_WHOLE_EVERY: Final = 60  #: looks
#: How long a consumer stays after its term ended: by then every process has seen the end, and makes it no more.
_STAYS: Final = timedelta(seconds=10)


class WebhookReactor:
    """Makes a job of each event that matches a webhook; `host` keeps it running.

    Several processes may run it: they share the durable consumers, and whatever two of them do the ledger takes once.
    """

    name = "webhooks"

    def __init__(self, ledger: Ledger, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._ledger = ledger
        self._look_every_s = look_every_s
        self._readers: dict[TermName, TermReactor] = {}
        self._tasks: dict[TermName, asyncio.Task[None]] = {}
        self._task_webhooks: Mapping[str, Webhook] = {}
        self._newest = -1  #: stream sequence of the newest event of any webhook when it was looked last
        self._ending = False  #: whether a term that ended was still to be drained then

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
        """Delete the consumers of terms that ended and have nothing left; return those that have.

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
        """Have each of these terms read, and no other."""
        for name in [name for name in self._tasks if name not in terms]:
            await self._stop(name)
        for name, term in terms.items():
            reader = self._readers.get(name)
            if reader is None:
                self._readers[name] = reader = TermReactor(self._ledger, term, lambda: self._task_webhooks)
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

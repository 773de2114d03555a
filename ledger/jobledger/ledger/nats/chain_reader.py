"""The reader of jobs' chains from JetStream: chains asked for at the same moment are read with one request.

The server finds the newest message of each subject at once, while a search for the next one that fits a wildcard makes
it read whole blocks. So a chain is assembled subject by subject; the hashes that link its events prove that it is
complete.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.events import Carried, Held, JobEvent, Queued, Scheduled
from jobledger.ledger.model.log import ChainEvents
from jobledger.ledger.nats.api import ApiError, Batch, Found
from jobledger.ledger.nats.inbox import header, resolve

Read = Callable[[dict[str, Any]], Awaitable[Batch]]

_PAGE: Final = 256
#: The server refuses an answer of more than 1,024 messages; a chain has at most 25 subjects.
_CHAINS_AT_ONCE: Final = 40
_BYTES_AT_ONCE: Final = 4 << 20
_CHAIN_TOKENS: Final = 5


class ChainReader:
    """Reads chains by the direct gets of one log."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, read: Read, parse: Callable[[bytes, bytes], Message]
    ) -> None:
        self._loop = loop
        self._read = read  #: asks for a batch, patiently
        self._parse = parse
        self._waiting: dict[str, list[asyncio.Future[Batch]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def read(self, chain: str) -> ChainEvents:
        """Return the events that fit a filter; see `Log.read_chain`."""
        return (await self.read_as_of(chain))[0]

    async def read_as_of(self, chain: str) -> tuple[ChainEvents, int]:
        """Return the same, and the newest stream sequence of the replica that answered; 0: not known."""
        if _is_one_jobs(chain):
            try:
                found = await self._newest(chain)
            except (
                ApiError
            ):  # more subjects than the server answers at once: somebody published rubbish there
                return ChainEvents(await self._pages(chain)), 0
            messages = self._messages(found)
            events = ChainEvents(messages)
            if len(events) == len(messages) and _is_whole(
                events
            ):  # a message that is no event hides an event of its subject
                return events, found.up_to
            pages = [self._pages(subject) for subject in {message.subject for message in messages}]
            messages = list(itertools.chain.from_iterable(await asyncio.gather(*pages)))
            messages.sort(key=_stream_sequence)
            events = ChainEvents(messages)
            if _is_whole(events) or _is_what_is_held(events):
                return events, 0
        return ChainEvents(await self._pages(chain)), 0  # the chain grew or is broken, or a replica lags

    async def read_on(self, chain: str, after: int) -> ChainEvents:
        """Return the events of a chain after a sequence; see `Log.read_on`."""
        events = ChainEvents(await self._pages(chain, after))
        events.last_sequence = max(after, events.last_sequence)
        return events

    def _messages(self, raws: Iterable[Found]) -> list[Message]:
        return [self._parse(data, headers) for data, headers in raws]

    async def _pages(self, subject: str, after: int = 0) -> list[Message]:
        """Return every message that fits `subject`, in stream order, from one replica."""
        found: list[Message] = []
        while True:
            start = (found[-1].stream_sequence if found else after) + 1
            request = {"seq": start, "next_by_subj": subject, "batch": _PAGE}
            page = self._messages(await self._read(request))
            found.extend(page)
            if len(page) < _PAGE:
                return found

    def _newest(self, chain: str) -> asyncio.Future[Batch]:
        """Ask for the newest message of each subject of a chain, together with other callers of this moment."""
        answer: asyncio.Future[Batch] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._ask)
        self._waiting.setdefault(chain, []).append(answer)
        return answer

    def _ask(self) -> None:
        waiting, self._waiting = list(self._waiting.items()), {}
        for start in range(0, len(waiting), _CHAINS_AT_ONCE):
            task = self._loop.create_task(self._ask_for(dict(waiting[start : start + _CHAINS_AT_ONCE])))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask_for(self, waiting: dict[str, list[asyncio.Future[Batch]]]) -> None:
        """Answer all callers that wait for one of these chains, with an error if necessary."""
        request: dict[str, Any] = {"multi_last": list(waiting)}
        if len(waiting) > 1:
            request["max_bytes"] = _BYTES_AT_ONCE
        try:
            raws = await self._read(request)
        except ApiError as error:
            await self._ask_again(waiting, error)
            return
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            for answer in itertools.chain.from_iterable(waiting.values()):
                resolve(answer, error)
            return
        if len(waiting) > 1 and sum(len(data) + len(headers) for data, headers in raws) >= _BYTES_AT_ONCE:
            await self._ask_again(waiting)  # it was cut
            return
        found = {chain: Batch() for chain in waiting}
        for raw in raws:
            found.setdefault(_chain_of(header(raw[1], b"Nats-Subject").decode()), Batch()).append(raw)
        for chain, answers in waiting.items():
            found[chain].up_to = raws.up_to
            for answer in answers:
                resolve(answer, found[chain])

    async def _ask_again(
        self, waiting: dict[str, list[asyncio.Future[Batch]]], error: ApiError | None = None
    ) -> None:
        """Ask for each chain by itself, since the request for all failed; a chain that was alone gets the error."""
        for chain, answers in waiting.items():
            if len(waiting) > 1 or error is None:
                await self._ask_for({chain: answers})
            else:
                for answer in answers:
                    resolve(answer, error)


def _chain_of(subject: str) -> str:
    """Return the filter of the chain that a job event's subject belongs to."""
    return ".".join(subject.split(".", _CHAIN_TOKENS - 1)[: _CHAIN_TOKENS - 1]) + ".>"


def _is_one_jobs(chain: str) -> bool:
    """Return whether a filter names one job's chain: `<ledger>.job.<queue>.<job_id>.>`."""
    tokens = chain.split(".")
    return len(tokens) == _CHAIN_TOKENS and tokens[1] == "job" and tokens[-1] == ">" and "*" not in tokens


def _is_whole(events: list[StoredEvent]) -> bool:
    """Return whether these are all events of a job's chain up to the last of them, in order."""
    return not events or (_begins(events[0].event) and not events[0].event.prev and _are_linked(events))


def _is_what_is_held(events: list[StoredEvent]) -> bool:
    """Return whether all events of all subjects are in order, with the earlier ones in an archive."""
    return any(isinstance(each.event, Carried) for each in events) and _are_linked(events)


def _are_linked(events: list[StoredEvent]) -> bool:
    return all(event.event.prev == before.hash for before, event in itertools.pairwise(events))


def _begins(event: JobEvent) -> bool:
    return isinstance(event, Scheduled | Held) or (isinstance(event, Queued) and event.cause == "new")


_stream_sequence = operator.attrgetter("stream_sequence")

"""Taking in a delivery: its body kept, its rules matched, and `received` with every job it makes appended as one batch.

The chain of a delivery is named by the provider's id, so a second one of that id is refused by the condition of the
batch: whoever sent it gets the answer that the first one got. Source: ADR 032.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import EMPTY_CHAIN, Addition, JobView, commit_all, retry_raced
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.decisions import decide as decide_job
from jobledger.ledger.model.errors import PayloadMissingError, WrongSequenceError
from jobledger.ledger.model.hooks.delivery import (
    DELIVERY,
    Arrived,
    Delivery,
    MatchedJob,
    Receive,
    Retry,
    decide,
    is_repeat,
    job_id,
    named,
    next_number,
)
from jobledger.ledger.model.hooks.errors import DeliveryNotFoundError
from jobledger.ledger.model.hooks.match import Delivered, build_input, document_of, holds
from jobledger.ledger.model.hooks.route import Route, RouteDefinition, RouteRule, headers_kept, order_for
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.webhooks.routes import route_named

_DAY_S: Final = 24 * 3600.0
_HEADER_MAX: Final = 1_000
_AT_ONCE: Final = 64
_BODY_TYPE: Final = "content-type"

#: Makes the order of a job: what holds, job id, JSON text of the input -> what begins it. Nothing is appended.
MakeOrder = Callable[["Match", str, bytes], Awaitable[Enqueue]]


class BodyStore(Protocol):
    """Where bodies are kept; see `webhooks.bodies.Bodies`."""

    async def keep(self, body: bytes, life_s: float) -> None:
        """Keep a body under its sha256 for some time."""
        ...

    async def body(self, sha256: str) -> bytes:
        """Return a body. Raises: PayloadMissingError."""
        ...


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """What came in, after it was proven."""

    body: bytes
    headers: Mapping[str, str] = {}  #: by their names in lower case
    given: str = ""  #: the provider's id of the delivery, "" where it gives none
    scheme: str = ""  #: how it was proven; "": it was emitted
    secret: int = 0  #: the number of the secret that fitted, from 1


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery."""

    route: str
    delivery: str  #: its name, with which it can be found
    matched: tuple[MatchedJob, ...]  #: the jobs that it made
    repeated: bool = False  #: it was received before: these are the jobs that it made then
    sequence: int = 0  #: stream sequence of the event that records it; 0 for a repeat


class Match(NamedTuple):
    """A rule that holds, and the input it makes."""

    rule: RouteRule
    input: dict[str, Any]
    said: dict[str, Any]  #: what the delivery says of the job's order: options by their names


def matches(definition: RouteDefinition, arrival: Arrival) -> list[Match]:
    """Return the rules that hold for a delivery, with the inputs they make of it. Pure."""
    delivered = Delivered(
        arrival.headers, document_of(arrival.body, arrival.headers.get(_BODY_TYPE, "application/json"))
    )
    return [
        Match(rule, build_input(rule.input, delivered), order_for(rule, delivered))
        for rule in definition.rules
        if holds(rule.when, delivered)
    ]


class Receiver:
    """Records deliveries for one client."""

    def __init__(self, log: Log, bodies: BodyStore, order: MakeOrder, stamp: Callable[[str], Stamp]) -> None:
        self._log = log
        self._bodies = bodies
        self._order = order
        self._stamp = stamp

    async def receive(self, route: Route, arrival: Arrival, *, by: str = "", trace: str = "") -> Outcome:
        """Record a delivery to a route as it was read, with every job that its rules make: all of it or nothing.

        Raises: InvalidInputError, PayloadTooLargeError, LedgerFullError, UnreachableError, WrongSequenceError after too
            many lost races. Doing the same again is always safe.
        """
        definition = route.definition
        assert definition is not None, "a route that was removed receives nothing"
        again_after_s = 0 if arrival.given else 2 * definition.tolerance_s
        sha256 = digest(arrival.body)
        name, given = named(arrival.given or f"body {sha256}")
        stamp = self._stamp(by)
        known = await self._look(route.name, name)
        if known.state is not None and is_repeat(known.state, again_after_s, stamp.at):
            return _repeated(known.state)
        arrived = Arrived(
            given=given if arrival.given else "",
            sha256=sha256,
            size_bytes=len(arrival.body),
            kept_until=await self._keep(definition, arrival.body, stamp.at),
            scheme=arrival.scheme,
            secret=arrival.secret,
            headers=_kept(definition, arrival.headers),
        )
        found = matches(definition, arrival)

        def command(matched: Sequence[MatchedJob]) -> Receive:
            return Receive(
                arrived=arrived, definition=route.sequence, matched=matched, again_after_s=again_after_s
            )

        return await self._record(_Wish(route.name, name, found, command, by, trace), known)

    async def retry(self, route: str, delivery: str, *, reason: str = "", by: str = "") -> Outcome:
        """Have a delivery processed once more, by the rules as they are now; its jobs have ids of their own.

        Raises: RouteNotFoundError, DeliveryNotFoundError, PayloadMissingError where its body is not kept any more, and as
            `receive`.
        """
        now, definition = await route_named(self._log, route)
        found = matches(definition, await self.stored(route, delivery))

        def command(matched: Sequence[MatchedJob]) -> Retry:
            return Retry(definition=now.sequence, matched=matched, reason=reason)

        known = await self._look(route, delivery)
        return await self._record(_Wish(route, delivery, found, command, by, ""), known)

    async def stored(self, route: str, delivery: str) -> Arrival:
        """Return what a delivery was. Raises: DeliveryNotFoundError, PayloadMissingError, UnreachableError."""
        known = (await self._look(route, check_token("delivery", delivery))).state
        if known is None:
            raise DeliveryNotFoundError(route, delivery)
        if known.kept_until is None:
            raise PayloadMissingError(
                f"the body of delivery {delivery} was not kept: keep_bodies_days of route {route} was 0",
                state="gone",
            )
        if known.kept_until <= self._stamp("").at:
            raise PayloadMissingError(
                f"the body of delivery {delivery} was kept until {shown_time(known.kept_until)}", state="gone"
            )
        return Arrival(body=await self._bodies.body(known.sha256), headers=known.headers, scheme=known.scheme)

    async def _look(self, route: str, delivery: str) -> View[Delivery]:
        chain = DELIVERY.chain(self._log.names, route, delivery)
        return DELIVERY.view(*await end_of_chain(self._log, chain))

    async def _keep(self, definition: RouteDefinition, body: bytes, now: datetime) -> datetime | None:
        if not definition.keep_bodies_days:
            return None
        life_s = definition.keep_bodies_days * _DAY_S
        await self._bodies.keep(body, life_s)
        return now + timedelta(seconds=life_s)

    async def _record(self, wish: _Wish, known: View[Delivery]) -> Outcome:
        places: dict[JobRef, JobView | None] = {}
        view: View[Delivery] | None = known

        async def attempt() -> Outcome:
            nonlocal view
            before, view = view or await self._look(wish.route, wish.delivery), None
            number = next_number(before.state)
            jobs = await self._jobs(wish, number)
            stamp = self._stamp(wish.by)
            if wish.trace:
                stamp = msgspec.structs.replace(stamp, trace=wish.trace)
            matched = [
                MatchedJob(
                    rule=match.rule.name,
                    queue=job.ref.queue,
                    job=job.ref.job_id,
                    given=job.ref.job_id != job_id(wish.route, wish.delivery, match.rule.name, number),
                )
                for match, job in zip(wish.found, jobs, strict=True)
            ]
            event = decide(wish.route, wish.delivery, before.state, wish.command(matched), stamp)
            if event is None:
                assert before.state is not None, "it was received before"
                return _repeated(before.state)
            try:
                sequence = await commit_all(
                    self._log, [(before, [event]), *self._begun(wish, jobs, places, stamp)]
                )
            except WrongSequenceError:
                view = await self._look(wish.route, wish.delivery)
                if view.last_sequence == before.last_sequence:  # so it was one of the jobs
                    places.update(await self._places(jobs))
                raise
            return Outcome(
                route=wish.route, delivery=wish.delivery, matched=tuple(matched), sequence=sequence
            )

        return await retry_raced(attempt)

    async def _jobs(self, wish: _Wish, number: int) -> list[Enqueue]:
        return [
            await self._order(
                match,
                match.said.get("id") or job_id(wish.route, wish.delivery, match.rule.name, number),
                encode_value(
                    {"graph": match.rule.graph, "input": match.input} if match.rule.graph else match.input,
                    what=f"input of rule {match.rule.name}",
                ),
            )
            for match in wish.found
        ]

    def _begun(
        self, wish: _Wish, jobs: Sequence[Enqueue], places: Mapping[JobRef, JobView | None], stamp: Stamp
    ) -> list[Addition]:
        """Return the first events of the jobs; one that exists, as of an id that its task declares, stays as it is."""
        additions: list[Addition] = []
        begun: set[JobRef] = set()
        for job in jobs:
            place = places.get(job.ref, EMPTY_CHAIN)
            if place is not None and job.ref not in begun:  # two rules may name one job: the first makes it
                begun.add(job.ref)
                own = self._stamp(f"route:{wish.route}")
                own = msgspec.structs.replace(own, trace=stamp.trace, correlation=wish.delivery)
                additions.append((place, decide_job(None, job, own)))
        return additions

    async def _places(self, jobs: Sequence[Enqueue]) -> dict[JobRef, JobView | None]:
        """Return where each job can begin, behind what is no event; None for one that exists."""

        async def place(job: Enqueue) -> tuple[JobRef, JobView | None]:
            events = await self._log.read_chain(self._log.names.chain(job.ref))
            return job.ref, None if events else JobView(last_sequence=events.last_sequence)

        found: dict[JobRef, JobView | None] = {}
        for start in range(0, len(jobs), _AT_ONCE):
            found.update(await asyncio.gather(*map(place, jobs[start : start + _AT_ONCE])))
        return found


class _Wish(NamedTuple):
    """What is to be recorded of a delivery, whatever is in the ledger by then."""

    route: str
    delivery: str
    found: list[Match]
    command: Callable[[Sequence[MatchedJob]], Receive | Retry]
    by: str
    trace: str


def _repeated(delivery: Delivery) -> Outcome:
    return Outcome(route=delivery.route, delivery=delivery.delivery, matched=delivery.matched, repeated=True)


def _kept(definition: RouteDefinition, headers: Mapping[str, str]) -> dict[str, str]:
    names = sorted(headers_kept(definition) & headers.keys())
    return {name: headers[name][:_HEADER_MAX] for name in names}

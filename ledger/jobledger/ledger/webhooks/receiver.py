"""Taking in a delivery: its body kept, its rules matched, and `received` appended as one batch with all that it makes.

The chain of a delivery is named by the provider's id, so a second one of that id is refused by the condition of the
batch: whoever sent it gets the answer that the first one got. Source: ADR 032.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.derived_jobs import author_of, moved
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import EMPTY_CHAIN, Addition, JobView, commit_all, load, retry_raced
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.decisions import decide as decide_job
from jobledger.ledger.model.errors import PayloadMissingError, WrongSequenceError
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.hooks.delivery import (
    DELIVERY,
    ArrivedDelivery,
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
from jobledger.ledger.model.hooks.match import RuleInput, build_input, document_of, holds
from jobledger.ledger.model.hooks.route import (
    Route,
    RouteDefinition,
    RouteRule,
    headers_kept,
    order_for,
    value_for,
)
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.webhooks.changes import route_named
from jobledger.ledger.webhooks.signals import RunSignal, decide_signal

_DAY_S: Final = 24 * 3600.0
_HEADER_MAX: Final = 1_000
_AT_ONCE: Final = 64
_BODY_TYPE: Final = "content-type"
_REFUSED_MAX: Final = 500
#: Lost races of one delivery: as many as others may be about the same run at once.
_TRIES_MAX: Final = 64

#: Makes the command of a job: the match, job id, JSON text of the input -> the command. Nothing is appended.
MakeOrder = Callable[["Match", str, bytes], Awaitable[Enqueue]]
#: Makes a signal: the match, the signal's id, the command that begins its run -> the signal, or why there is none.
MakeSignal = Callable[["Match", str, Enqueue | None], Awaitable[RunSignal]]


class BodyStore(Protocol):
    """Where bodies are kept; see `webhooks.bodies.Bodies`."""

    async def keep(self, body: bytes, life_s: float) -> None:
        """Keep a body under its sha256 for some time."""
        ...

    async def body(self, sha256: str) -> bytes:
        """Return a body. Raises: PayloadMissingError."""
        ...


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that came in and was verified."""

    body: bytes
    headers: Mapping[str, str] = {}  #: by their names in lower case
    given: str = ""  #: the provider's id of the delivery, "" where it gives none
    scheme: str = ""  #: how it was proven; "": it was emitted
    secret: int = 0  #: the number of the secret that fitted, from 1


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery."""

    route: str
    delivery: str  #: its name, with which it can be found
    matched: tuple[MatchedJob, ...]  #: the jobs that it made, and the runs that it sent signals
    differs: bool = False  #: an earlier delivery of this name had another body: this one was not used
    repeated: bool = False  #: it was received before: these are the jobs that it made then
    sequence: int = 0  #: stream sequence of the event that records it; 0 for a repeat


class Match(NamedTuple):
    """A rule that holds, and the input it makes."""

    rule: RouteRule
    input: dict[str, Any]
    said: dict[str, Any]  #: what the delivery says of the job's order: options by their names
    value: Any = None  #: what its signal says; `NOTHING` where the delivery lacks it


def matches(definition: RouteDefinition, arrival: Arrival) -> list[Match]:
    """Return the rules that hold for a delivery, with the inputs they make of it. Pure."""
    delivered = RuleInput(
        arrival.headers, document_of(arrival.body, arrival.headers.get(_BODY_TYPE, "application/json"))
    )
    return [
        Match(
            rule,
            build_input(rule.input, delivered),
            order_for(rule, delivered),
            value_for(rule, delivered) if rule.signal else None,
        )
        for rule in definition.rules
        if holds(rule.when, delivered)
    ]


class _Place(NamedTuple):
    """The chain of a job that is to be begun."""

    view: JobView | None  #: the chain's end, where it can begin; None: a job has the id
    author: str = ""  #: who made that one


_FREE: Final = _Place(EMPTY_CHAIN)


class _Act(NamedTuple):
    """What a rule that holds is to do: begin a job, or send a run a signal, and begin the run if there is none."""

    match: Match
    job: Enqueue | None
    signal: RunSignal | None
    named: str  #: the job id that follows from the delivery and the rule
    is_moved: bool = False  #: whether `named` is another one, since that one was taken

    @property
    def ref(self) -> JobRef | None:
        return self.signal.ref if self.signal is not None else self.job.ref if self.job is not None else None

    def beside(self, places: Mapping[JobRef, _Place], author: str) -> _Act:
        """Return the act with another job id if a job of another author has the id that follows from the delivery.

        One of the same author is left of a delivery that an archive run took away.
        """
        job = self.job
        if self.signal is not None or job is None or job.ref.job_id != self.named:
            return self
        place = places.get(job.ref, _FREE)
        if place.view is not None or place.author == author:
            return self
        job = moved(job)
        return self._replace(job=job, named=job.ref.job_id, is_moved=True)

    def matched(self, refused: str) -> MatchedJob:
        ref, rule = self.ref, self.match.rule
        job = self.match.said.get("id", "") if ref is None else ref.job_id
        return MatchedJob(
            rule=rule.name,
            queue=rule.queue if ref is None else ref.queue,
            job=job,
            given=self.is_moved or job != self.named,
            signal=rule.signal,
            refused=refused[:_REFUSED_MAX],
        )


class _AddedJob(msgspec.Struct):
    """What one append adds to the chain of one job."""

    place: JobView
    job: Job | None  #: with the events
    events: list[JobEvent] = []

    def add(self, events: Sequence[JobEvent]) -> None:
        self.events.extend(events)
        for event in events:
            self.job = evolve(self.job, event, 0)


class Receiver:
    """Records deliveries for one client."""

    def __init__(
        self,
        log: Log,
        bodies: BodyStore,
        order: MakeOrder,
        signal: MakeSignal,
        stamp: Callable[[str], Stamp],
    ) -> None:
        self._log = log
        self._bodies = bodies
        self._order = order
        self._signal = signal
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
            return _repeated(known.state, sha256)
        arrived = ArrivedDelivery(
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
        places: dict[JobRef, _Place] = {}
        view: View[Delivery] | None = known
        planned: dict[int, list[_Act]] = {}  # by the number, which ids follow from

        async def attempt() -> Outcome:
            nonlocal view
            before, view = view or await self._look(wish.route, wish.delivery), None
            number = next_number(before.state)
            if number not in planned:
                planned[number] = await self._acts(wish, number)
            acts = planned[number]
            stamp = self._stamp(wish.by)
            if wish.trace:
                stamp = msgspec.structs.replace(stamp, trace=wish.trace)
            additions, matched = await self._begun(wish, acts, places, stamp)
            command = wish.command(matched)
            event = decide(wish.route, wish.delivery, before.state, command, stamp)
            if event is None:
                assert before.state is not None, "it was received before"
                assert isinstance(command, Receive), "what is processed again is no repeat"
                return _repeated(before.state, command.arrived.sha256)
            try:
                sequence = await commit_all(self._log, [(before, [event]), *additions])
            except WrongSequenceError:
                view = await self._look(wish.route, wish.delivery)
                if view.last_sequence == before.last_sequence:  # the lost race was at one of the jobs
                    made = [each.job for each in acts if each.job is not None and each.signal is None]
                    places.update(await self._places(made))
                    planned[number] = [each.beside(places, _author(wish.route)) for each in acts]
                raise
            return Outcome(
                route=wish.route, delivery=wish.delivery, matched=tuple(matched), sequence=sequence
            )

        return await retry_raced(attempt, tries_max=_TRIES_MAX)

    async def _acts(self, wish: _Wish, number: int) -> list[_Act]:
        return [await self._act(wish, match, number) for match in wish.found]

    async def _act(self, wish: _Wish, match: Match, number: int) -> _Act:
        rule = match.rule
        named = job_id(wish.route, wish.delivery, rule.name, number)
        if not rule.signal:
            return _Act(match, await self._job(match, match.said.get("id") or named), None, named)
        run = match.said.get("id")
        start = await self._job(match, run) if run and rule.task else None
        signal = await self._signal(match, match.said.get("signal_id") or named, start)
        return _Act(match, start, signal, named)

    async def _job(self, match: Match, name: str) -> Enqueue:
        rule = match.rule
        given = {"graph": rule.graph, "input": match.input} if rule.graph else match.input
        return await self._order(match, name, encode_value(given, what=f"input of rule {rule.name}"))

    async def _begun(
        self, wish: _Wish, acts: Sequence[_Act], places: Mapping[JobRef, _Place], stamp: Stamp
    ) -> tuple[list[Addition], list[MatchedJob]]:
        """Return what the jobs' chains get, and what is recorded of it. Raises: UnreachableError.

        A job that exists, as of an id that its task declares, stays as it is; of two rules that name one job the first
        makes it. A signal is decided on its run as it is now.
        """
        added: dict[JobRef, _AddedJob] = {}
        matched: list[MatchedJob] = []
        with acting_for(
            None
        ):  # whoever set the rule up was allowed to, whoever has the delivery processed once more
            own = self._stamp(_author(wish.route))
        own = msgspec.structs.replace(own, trace=stamp.trace, correlation=wish.delivery)
        for act in acts:
            refused = ""
            if act.signal is not None:
                refused = act.signal.refused or await self._signalled(act.signal, act.job, added, own)
            elif act.job is not None and act.job.ref not in added:
                place = places.get(act.job.ref, _FREE).view
                if place is not None:
                    added[act.job.ref] = chain = _AddedJob(place, None)
                    chain.add(decide_job(None, act.job, own))
            matched.append(act.matched(refused))
        return [(each.place, each.events) for each in added.values()], matched

    async def _signalled(
        self, signal: RunSignal, start: Enqueue | None, added: dict[JobRef, _AddedJob], stamp: Stamp
    ) -> str:
        """Add the events of a signal; return why there are none, or ""."""
        assert signal.ref is not None, "it is not refused"
        assert signal.command is not None, "it is not refused"
        chain = added.get(signal.ref)
        if chain is None:
            view = await load(self._log, signal.ref)
            chain = _AddedJob(view, view.job)
        events, refused = decide_signal(chain.job, signal.command, start, stamp)
        if events:
            chain.add(events)
            added[signal.ref] = chain
        return refused

    async def _places(self, jobs: Sequence[Enqueue]) -> dict[JobRef, _Place]:
        """Return where each job can begin, and who made those that exist."""

        async def place(job: Enqueue) -> tuple[JobRef, _Place]:
            events = await self._log.read_chain(self._log.names.chain(job.ref))
            if events:
                return job.ref, _Place(None, author_of(events[0].event))
            return job.ref, _Place(JobView(last_sequence=events.last_sequence))

        found: dict[JobRef, _Place] = {}
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


def _author(route: str) -> str:
    """Return who makes the jobs of a route's rules."""
    return f"route:{route}"


def _repeated(delivery: Delivery, sha256: str) -> Outcome:
    return Outcome(
        route=delivery.route,
        delivery=delivery.delivery,
        matched=delivery.matched,
        repeated=True,
        differs=delivery.sha256 != sha256,
    )


def _kept(definition: RouteDefinition, headers: Mapping[str, str]) -> dict[str, str]:
    names = sorted(headers_kept(definition) & headers.keys())
    return {name: headers[name][:_HEADER_MAX] for name in names}

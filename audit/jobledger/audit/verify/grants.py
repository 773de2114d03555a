"""What a check proves of limits: `above`, `slot`, `order`, `rate` and `void`. Events alone decide, no clock.

`Holders` tracks who holds which slots. What is kept: who holds slots at the moment, and of each line the newest job
that was granted, which goes to the disk with the rest where memory is short. A ledger without limits costs one look an
event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

import msgspec

from jobledger.audit.verify.definitions import Definitions, decoded
from jobledger.audit.verify.store import Form, RecordStore
from jobledger.ledger.model.aggregate import Broken, Rule
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.events import Carried, JobEvent, Queued, Started, event_type
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.limits.definition import Definition, LimitEvent, Terms, evolve
from jobledger.ledger.model.limits.flow import Granted, GrantedJob
from jobledger.ledger.model.limits.holders import Holders, JobKey, JobSlots, carried_holding
from jobledger.ledger.model.limits.lines import fairness_of
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.limits.rates import Rates, nanoseconds
from jobledger.ledger.model.reactor import Archived, LimitInForce

RULES: Final[tuple[Rule, ...]] = ("above", "slot", "order", "rate", "void")
#: How long a granted job may stay `held` after the next grant by another reactor.
GRACE: Final = timedelta(seconds=60)
_BYTES: Final = 40  # size of a line's newest grant, about

#: A rule that is broken, how, and by which job: `<queue>/<job id>`, "" for none.
Found = tuple[str, Broken]


class _Open(msgspec.Struct, gc=False):
    """A granted job that was not queued yet."""

    grant: int  #: stream sequence of its `granted`
    by: str  #: the author of the grant
    other_at: datetime | None = None  #: when another author first made a grant after that


class GrantRules:
    """The rules of limits, fed with the events of one ledger in stream order. Call `close`."""

    def __init__(
        self,
        memory_bytes_max: int | None,
        from_sequence: int = 1,
        limits: tuple[LimitInForce, ...] | None = None,
    ) -> None:
        """Begin: nobody holds anything. `from_sequence`: that of the first event.

        `limits`: the definitions before that; None: unknown.
        """
        self._from_sequence = from_sequence
        self.grants = 0  #: jobs that were granted
        self.void = 0  #: grants of jobs that did not wait any more; not among `grants`
        self._holders = Holders()
        self._rates = Rates()
        self._definitions = Definitions()
        self._limits: dict[str, Definition] = {}
        self._unread: list[tuple[int, LimitEvent]] = []  # definitions that no grant obeyed so far
        self._is_told = from_sequence == 1  # whether all that was defined before is known
        self._before: set[str] = set()  # limits that were defined before
        self._unjudged = 0  # grants of a limit whose definition is not known
        self._at = 0  # stream sequence of the newest grant
        self._open: dict[JobKey, _Open] = {}
        self._newest: RecordStore[int] = RecordStore(_HELD, memory_bytes_max)
        if limits is not None:
            self._begin(limits)

    def _begin(self, limits: tuple[LimitInForce, ...]) -> None:
        """Take in what was defined before the range, unless a newer version said it."""
        with contextlib.suppress(CorruptLedgerError):
            self._unread += sorted(((each.sequence, decoded(each)) for each in limits), key=itemgetter(0))
            self._before = {each.limit for each in limits}
            self._definitions.precede(limits)
            self._is_told = True

    def close(self) -> None:
        """Close the store of records, with its part on the disk."""
        self._newest.close()

    def limit(self, event: LimitEvent, message: Message) -> None:
        """Take in a definition; it applies from the first grant that had read it."""
        self._unread.append((message.stream_sequence, event))
        self._definitions.feed(event, message)

    def archived(self, event: Archived) -> Iterator[Broken]:
        """Compare the limits in `archived` with their own events; earlier releases recorded none."""
        through = event.through_sequence
        if self._is_told and event.limits is not None and through >= self._from_sequence:
            known = {each.limit: each for each in self._definitions.at(through)}
            said = {each.limit: each for each in event.limits}
            for name in sorted(known.keys() | said.keys()):
                if known.get(name) != said.get(name):
                    yield (
                        "archive",
                        f"`archived` says another definition of limit {name} than its events up to {through}",
                    )
        self._definitions.forget(through)

    def granted(self, event: Granted, sequence: int, job_of: Callable[[str], Job | None]) -> Iterator[Found]:
        """Take in grants, and yield what is wrong with them. `job_of`: a job by `<queue>/<job id>`, as it is now."""
        self._obey(event.limits_sequence)
        self._at = max(self._at, nanoseconds(event.at))
        taken: dict[str, str] = {}  # the last job that took a slot of each key here
        for each in event.jobs:
            name = f"{each.queue}/{each.job}"
            job = job_of(name)
            if job is None or job.state is not JobState.HELD or job.wait_sequence != each.held:
                self.void += 1
                continue
            self.grants += 1
            needs = self._take(each, job, sequence, event.by)
            taken.update(dict.fromkeys(needs, name))
            for found in (*self._order(job, needs, each.held), *self._rate(needs, sequence)):
                yield name, found
        for key, name in taken.items():
            broken = self._above(key, event)
            if broken is not None:
                yield name, broken
        for waits in self._open.values():
            if waits.other_at is None and waits.by != event.by:
                waits.other_at = event.at

    def _obey(self, limits_sequence: int) -> None:
        count = 0
        for sequence, event in self._unread:
            if sequence > limits_sequence:
                break
            count += 1
            definition = self._limits[event.limit] = evolve(None, event, sequence)
            for key in [key for key in self._rates.whole_at if split(key)[0] == event.limit]:
                terms = definition.of(split(key)[1])
                if terms is not None and terms.rate is not None:
                    self._rates.redefine(key, terms, self._at)
        del self._unread[:count]

    def _terms(self, key: str) -> Terms | None:
        name, rest = split(key)
        definition = self._limits.get(name)
        return None if definition is None else definition.of(rest)

    def _is_unknown(self, name: str) -> bool:
        """Return whether a limit may have a definition before the range that is not known."""
        return (
            self._from_sequence > 1
            and name not in self._limits
            and (name in self._before or not self._is_told)
        )

    def _keeps(self, key: str) -> bool:
        terms = self._terms(key)
        return terms is not None and terms.keep == "job"

    def _take(self, each: GrantedJob, job: Job, grant: int, by: str) -> tuple[str, ...]:
        """Give a job its slots; return the keys of which it had none."""
        key = (each.queue, each.job)
        self._open[key] = _Open(grant, by)
        return self._holders.take(key, job.order.limits, held=each.held, grant=grant, keeps=self._keeps)

    def _rate(self, needs: tuple[str, ...], grant: int) -> Iterator[Broken]:
        for limit in needs:
            terms = self._terms(limit)
            if terms is not None and terms.rate is not None:
                early_s = (self._rates.free_at(limit, terms) - self._at) / 1e9
                if early_s > 0:
                    yield (
                        "rate",
                        f"`granted` at {grant} is {early_s:.6f} s before the rate of {limit} allows it",
                    )
                self._rates.take(limit, terms, self._at)

    def _order(self, job: Job, needs: tuple[str, ...], held: int) -> Iterator[Broken]:
        order = job.order
        fair = fairness_of(order.fair, order.limits)
        line = "\n".join((order.priority, job.queue, fair, *needs))
        newest = self._newest.get(line)
        if newest is not None and held < newest:
            yield (
                "order",
                f"it was held at {held}, and one of its line that was held at {newest} was granted before it",
            )
        self._newest.put(line, held if newest is None else max(held, newest))

    def _above(self, key: str, event: Granted) -> Broken | None:
        terms, used = self._terms(key), self._holders.used(key)
        slots = event.slots.get(key, None if terms is None else terms.slots)
        if terms is None and slots is None:
            if self._is_unknown(split(key)[0]):
                self._unjudged += 1
                return None
            return (
                "above",
                f"{key} was granted, which nobody had defined up to stream sequence {event.limits_sequence}",
            )
        if slots is None or used <= slots:
            return None
        return "above", f"{used:,} jobs hold {key} after this grant: {slots:,} may"

    def job(self, before: Job | None, event: JobEvent) -> Iterator[Broken]:
        """Take in an event of a job that has limits, and yield what is wrong with it; `before`: the job without it."""
        key = (event.queue, event.job)
        if isinstance(event, Carried):
            self._carried(key, event)
        elif isinstance(event, Queued | Started):
            yield from self._slot(key, before, event)
        else:
            self._holders.feed(event)
        if not isinstance(event, Carried):
            self._open.pop(key, None)

    def _slot(self, key: JobKey, before: Job | None, event: Queued | Started) -> Iterator[Broken]:
        if isinstance(event, Queued) and 0 < event.grant < self._from_sequence and before is not None:
            self._granted_earlier(key, before, event.grant)
        holding, kind = self._holders.jobs.get(key), event_type(event)
        if holding is None or len(holding.limits) < (0 if before is None else len(before.order.limits)):
            yield "slot", f"`{kind}`, and it holds no slot of its limits"
        elif isinstance(event, Queued) and event.cause == "admitted":
            wait = 0 if before is None else before.wait_sequence
            if event.grant != holding.grant:
                yield "slot", f"`queued` names the grant at {event.grant}, it was granted at {holding.grant}"
            elif holding.held and holding.held != wait:
                yield (
                    "slot",
                    f"the grant at {event.grant} answers `held` at {holding.held}, the job waits since {wait}",
                )

    def _granted_earlier(self, key: JobKey, job: Job, grant: int) -> None:
        """Take in the slots of a job that was granted before the range and queued in it."""
        if job.state is JobState.HELD:
            kept = tuple(filter(self._keeps, job.order.limits))
            self._holders.put(key, JobSlots(job.order.limits, kept, grant, job.wait_sequence))

    def _carried(self, key: JobKey, event: Carried) -> None:
        """Take in the slots that a `carried` shows, where the events that gave them are archived."""
        if key not in self._holders.jobs:
            self._holders.put(key, carried_holding(event.job_state, self._keeps))

    def proven(self, broken: Container[str]) -> tuple[Rule, ...]:
        """Return which of the rules of limits hold; none if there was no grant."""
        unjudged: tuple[Rule, ...] = ("above", "rate") if self._unjudged else ()
        return tuple(rule for rule in RULES if self.grants and rule not in broken and rule not in unjudged)

    def at_end(self, now: datetime | None) -> Iterator[tuple[str, int, Broken]]:
        """Yield jobs, with their `granted`, that are neither queued nor gone long after another reactor's grant."""
        for (queue, job), each in self._open.items():
            if now is not None and each.other_at is not None and now - each.other_at > GRACE:
                late_s = (now - each.other_at).total_seconds()
                sentence = f"it was granted at {each.grant} and is still held, {late_s:,.0f} s after another reactor's grant"
                yield f"{queue}/{job}", each.grant, ("void", sentence)


_HELD: Final[Form[int]] = Form(
    weigh=lambda _: _BYTES,
    is_live=lambda _: True,
    encode=msgspec.json.encode,
    decode=lambda _, data: msgspec.json.decode(data, type=int),
)

"""Why a job is held: which of its limits has no room for it, which jobs hold its slots, how many come first. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.audit.trail_words import count, first_few
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.definition import Terms, rate_words
from jobledger.ledger.model.limits.names import RESERVED, split

_HOLDERS_SHOWN: Final = 3


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, or one key of it, at this moment."""

    limit: str  #: `name` or `name:key`
    terms: Terms | None  #: its terms; None: nobody defined it, so it has no room
    used: int = 0  #: how many jobs hold a slot of it
    holders: tuple[str, ...] = ()  #: `<queue>/<job id>` of the earliest holders, only a few
    waiting: int = 0  #: how many jobs wait for a slot of it
    free_at: datetime | None = None  #: when its rate allows another start; None: now, or no rate
    unstarted: int = 0  #: for a limit with a rate: number of admitted jobs without a recorded start

    #: If the asker may not see all jobs: whether it has room; the numbers above are 0 then.
    only: Literal["", "full", "room"] = ""

    @property
    def is_full(self) -> bool:
        """Whether it has no room for another job."""
        if self.terms is None:
            return True
        if self.only:
            return self.only == "full"
        no_slot = self.terms.slots is not None and self.used >= self.terms.slots
        return no_slot or self.free_at is not None or self._waits_for_starts

    @property
    def _waits_for_starts(self) -> bool:
        return self.terms is not None and self.terms.rate is not None and self.unstarted >= self.terms.burst

    def words(self, moment: Callable[[datetime], str]) -> str:
        """Return how full it is, for a person."""
        terms = self.terms
        if terms is None:
            return f"nobody defined limit {self.limit}"
        if terms.slots == 0:
            return f"{self.limit} has 0 slots, so that none may start"
        if self.only:
            return f"{self.limit} {'is full' if self.is_full else 'has room'}"
        used = f"{self.used:,}" if terms.slots is None else f"{self.used:,} of {terms.slots:,}"
        if terms.slots is not None and self.used >= terms.slots:
            return f"{self.limit} is full ({used}: {self._who()})"
        if self.free_at is not None and terms.rate is not None:
            return f"{self.limit} lets {rate_words(terms.rate, terms.per_s)} start, the next one at {moment(self.free_at)}"
        if self._waits_for_starts:
            have = "has" if self.unstarted == 1 else "have"
            return f"{self.limit} waits until {count(self.unstarted, 'job')} that it admitted {have} started"
        return f"{self.limit} has room ({used})"

    def without_numbers(self) -> LimitState:
        """Return it without holders and numbers, for a person who may not see all jobs."""
        only: Literal["full", "room"] = "full" if self.is_full else "room"
        return LimitState(limit=self.limit, terms=self.terms, only=only)

    def _who(self) -> str:
        return first_few(self.holders, _HOLDERS_SHOWN, self.used)


class HeldFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a job that is held."""

    limits: tuple[LimitState, ...]  #: in the order of the job's own limits
    place: int = 0  #: 1: it is the first of its line; 0: it does not wait any more
    is_open: bool = True  #: whether a living worker serves its queue
    grant: int = 0  #: stream sequence of the `granted` that admitted it, if that is stored already


def explain_held(job: Job, facts: HeldFacts, moment: Callable[[datetime], str]) -> tuple[str, str]:
    """Return what a held job waits for, and a command that would change it; `moment` puts a time into words."""
    if not facts.place:
        if facts.grant:
            return f"its limits admitted it at stream sequence {facts.grant}: it is queued in a moment", ""
        return "it has just left its line", ""
    full = [each for each in facts.limits if each.is_full]
    roomy = [each for each in facts.limits if not each.is_full]
    # Limits that only a person can change come first.
    full.sort(key=lambda each: (each.terms is not None, each.terms is not None and each.terms.slots != 0))
    said = [each.words(moment) for each in (*full, *roomy)]
    line = f"it is number {facts.place:,} of its line"
    if full:
        return "; ".join((said[0], line, *said[1:])), _hint(full[0])
    if not facts.is_open:
        closed = f"no worker serves queue {job.queue}, so none of its jobs is admitted"
        return "; ".join((closed, line, *said)), f"jobledger worker --app ... --queue {job.queue}"
    if facts.place > 1:
        before = count(facts.place - 1, "job")
        return "; ".join(
            (f"{before} of its line come first", *said)
        ), f"jobledger limits show {facts.limits[0].limit}"
    return "; ".join((*said, "it is the next of its line")), "jobledger doctor"


def to_define(limit: str) -> str:
    """Return what to define so that an undefined key has room: its limit, or the key itself for a reserved name."""
    name, _ = split(limit)
    return limit if name in RESERVED else name


def _hint(limit: LimitState) -> str:
    if limit.terms is None:
        return f"jobledger limits set {to_define(limit.limit)} --slots 10"
    if limit.terms.slots == 0:  # only a person can change that
        return f"jobledger limits set {limit.limit} --slots 10"
    return f"jobledger limits show {limit.limit}"

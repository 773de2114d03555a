"""Which rows a question is about: conditions on jobs and on dead letters, and their SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from jobledger.ledger.model.inputs import checked_limits


def _given(terms: Mapping[str, str | None]) -> dict[str, str]:
    return {term: value for term, value in terms.items() if value is not None}


class SaidFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs, by what their enqueuers said of them; None, and no pair, is no condition."""

    tenant: str | None = None
    correlation: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()  #: every one of these pairs
    limited_by: str | None = None  #: `name:key`, or a name alone for whatever key
    created_by: str | None = None  #: who asked for the job

    def __post_init__(self) -> None:
        """Refuse what is no limit: an empty name, as of a variable that is not set, would choose every job.

        Raises: InvalidInputError, InvalidTokenError.
        """
        if self.limited_by is not None:
            checked_limits((self.limited_by,))

    def __bool__(self) -> bool:
        """Return whether there is a condition."""
        return self != NOTHING_SAID

    def terms(self) -> tuple[list[str], list[str]]:
        """Return conditions on rows of `jobs`, all of which must hold, and their values."""
        terms: list[str] = []
        values: list[str] = []
        words = (("tenant", self.tenant), ("correlation", self.correlation), ("created_by", self.created_by))
        for column, word in words:
            if word is not None:
                terms.append(f"{column} = ? AND {column} <> ''")  # as the index says that it is made of
                values.append(word)
        for pair in self.metadata:
            terms.append(
                "EXISTS (SELECT 1 FROM json_each(metadata) AS said WHERE said.key = ? AND said.value = ?)"
            )
            values += pair
        if self.limited_by is not None:
            found = "instr(' ' || limits || ' ', ?)"  # no name has a space in it
            terms.append(f"({found} OR {found})")
            exact = f" {self.limited_by} "
            values += [exact, exact if ":" in self.limited_by else f" {self.limited_by}:"]
        return terms, values


NOTHING_SAID: Final = SaidFilter()


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; None is no condition. Times are ISO-8601 text in UTC and mean when they became dead."""

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    fingerprint: str | None = None  #: or a prefix of it
    since: str | None = None  #: at this time or later
    until: str | None = None  #: before this time
    said: SaidFilter = NOTHING_SAID

    def where(self) -> tuple[str, list[str]]:
        """Return the condition in SQL, and its values."""
        terms = {
            "queue = ?": self.queue,
            "task = ?": self.task,
            "reason = ?": self.reason,
            "dead_at >= ?": self.since,
            "dead_at < ?": self.until,
        }
        if self.fingerprint is not None:
            # Hex digits are all below the tilde.
            terms |= {"fingerprint >= ?": self.fingerprint, "fingerprint < ?": f"{self.fingerprint}~"}
        given = _given(terms)
        said, values = self.said.terms()
        jobs = [f"(job_id, queue) IN (SELECT id, queue FROM jobs WHERE {' AND '.join(said)})"] if said else []  # noqa: S608
        return " AND ".join((*given, *jobs)) or "1", [*given.values(), *values]


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs; None is no condition. Times are ISO-8601 text in UTC and mean when they were enqueued."""

    states: tuple[str, ...]  #: any of these
    queue: str | None = None
    task: str | None = None
    since: str | None = None  #: at this time or later
    until: str | None = None  #: before this time
    said: SaidFilter = NOTHING_SAID

    def where(self) -> tuple[str, list[str]]:
        """Return the condition in SQL, and its values."""
        given = _given(
            {
                "queue = ?": self.queue,
                "task = ?": self.task,
                "created_at >= ?": self.since,
                "created_at < ?": self.until,
            }
        )
        states = f"status IN ({', '.join('?' * len(self.states))})"
        said, values = self.said.terms()
        return " AND ".join((states, *given, *said)), [*self.states, *given.values(), *values]

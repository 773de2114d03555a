"""Which rows a question is about: conditions on jobs and on dead letters, and their SQL."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


def _given(terms: Mapping[str, str | None]) -> dict[str, str]:
    return {term: value for term, value in terms.items() if value is not None}


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; None is no condition. Times are ISO-8601 text in UTC and mean when they became dead."""

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    fingerprint: str | None = None  #: or a prefix of it
    since: str | None = None  #: at this time or later
    until: str | None = None  #: before this time

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
        return " AND ".join(given) or "1", list(given.values())


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs; None is no condition. Times are ISO-8601 text in UTC and mean when they were enqueued."""

    states: tuple[str, ...]  #: any of these
    queue: str | None = None
    task: str | None = None
    since: str | None = None  #: at this time or later
    until: str | None = None  #: before this time

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
        return " AND ".join((states, *given)), [*self.states, *given.values()]

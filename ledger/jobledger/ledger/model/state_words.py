"""The states of a job in words for people: one table for terminals and pages. Pure.

Filters, columns, JSON, Python and metrics use the names of the states (`queued`, `retry_wait`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jobledger.ledger.model.job import JobState

#: The words after "it is" in a sentence.
STATE_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobState.SCHEDULED: "waiting for its time",
        JobState.HELD: "held back by a limit",
        JobState.QUEUED: "queued",
        JobState.RUNNING: "running",
        JobState.RETRY_WAIT: "waiting for its retry",
        JobState.WAITING: "waiting for a signal, a child or a time",
        JobState.PAUSED: "paused by a person",
        JobState.COMPLETED: "completed",
        JobState.CANCELLED: "cancelled",
        JobState.DEAD_LETTERED: "a dead letter",
        JobState.DISCARDED: "discarded",
    }
)


def state_title(state: str) -> str:
    """Return the name of a state, of a job or of an attempt, as a label: `Retry wait`."""
    return state.replace("_", " ").capitalize()


def state_words(state: str) -> str:
    """Return the words after "it is" in a sentence; of a state that only attempts have, its name."""
    return STATE_WORDS.get(state, state.replace("_", " "))

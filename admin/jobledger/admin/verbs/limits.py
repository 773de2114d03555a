"""Limit verbs: set a limit, or what differs for one key of it, and take that back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from jobledger.admin.limits import ChangedLimit, remove_limit, set_limit
from jobledger.admin.verbs.kit import Note, Place, Plan, Reason, Verb, option, verb
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.limits.definition import (
    KEEPS,
    MODES,
    PERIOD_S_MAX,
    Keep,
    Mode,
    Terms,
    terms_words,
)

Name = Annotated[str, option("The limit's name, or NAME:KEY for one key of it.", "LIMIT")]
_CHANGES: Final = ("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT")


@verb(
    "limits set",
    "PUT /v1/limits/{limit}",
    permission="manage",
    summary="Define a limit",
    problems=(*_CHANGES, "REFUSED"),
    form="/limits/set",
    then="/limits",
)
class SetLimit(Verb[ChangedLimit], frozen=True, kw_only=True):
    """Define a limit, or what differs for one key; what is not named stays. Nothing that runs is ended for it."""

    limit: Name
    slots: Annotated[
        int | UnsetType | None, option("How many jobs may hold it at once; 0: none.", "N|none")
    ] = UNSET
    rate: Annotated[
        float | UnsetType | None, option("How many jobs may start in the time of --per.", "N|none")
    ] = UNSET
    per_s: (
        Annotated[
            float,
            option("The period of --rate, such as 1m. (default: 1s)", "SPAN", ge=0.001, le=PERIOD_S_MAX),
        ]
        | UnsetType
    ) = UNSET
    burst: Annotated[int, option("How many may start at once after a pause.", "N", ge=1)] | UnsetType = UNSET
    mode: Annotated[
        Mode | UnsetType, option(f"What a job does that finds it full: {', '.join(MODES)}.", "MODE")
    ] = UNSET
    keep: Annotated[
        Keep | UnsetType,
        option(
            f"When a job gives its slot back, after each attempt or at its end: {', '.join(KEEPS)}.", "KEEP"
        ),
    ] = UNSET
    weight: Annotated[float | UnsetType, option("Its share beside others, 1 by default.", "X")] = UNSET
    queues: Annotated[
        tuple[str, ...] | UnsetType,
        option(
            "Only jobs of such queues may name it; may be repeated. '*': all may, none: nobody says any more.",
            "PATTERN",
            flag="--queue",
        ),
    ] = UNSET
    tasks: Annotated[
        tuple[str, ...] | UnsetType,
        option("The same of tasks; may be repeated.", "PATTERN", flag="--task"),
    ] = UNSET
    reason: Reason = ""
    plan: Plan = False

    def __post_init__(self) -> None:
        """Refuse a wish that changes nothing. Raises: InvalidInputError."""
        if not self.changes:
            raise InvalidInputError(
                "say what is to hold: slots, or rate and its period, none for no bound; or which queues and tasks may name it"
            )

    @property
    def changes(self) -> dict[str, Any]:
        """The given changes, by the names of `Terms`."""
        return {
            name: value for name in Terms.__struct_fields__ if (value := getattr(self, name)) is not UNSET
        }

    async def do(self, place: Place) -> ChangedLimit:
        """Set it. Raises: as `set_limit`."""
        return await set_limit(
            place.ledger, self.limit, self.changes, reason=self.reason, by=place.by, plan=self.plan
        )

    def say(self, found: ChangedLimit) -> Iterator[str]:
        """Say what holds now, and what held before."""
        yield from _told(found, plan=self.plan)


@verb(
    "limits remove",
    "DELETE /v1/limits/{limit}",
    permission="manage",
    summary="Remove a limit",
    problems=(*_CHANGES, "NOT_FOUND"),
    form="/limits/remove",
    then="/limits",
)
class RemoveLimit(Verb[ChangedLimit], frozen=True, kw_only=True):
    """Take back a person's terms of a limit, or of one key (NAME:KEY): those in a running worker's code then hold.

    Where no running worker's code has the limit, nothing defines it any more, and its jobs stay held.
    """

    limit: Name
    reason: Reason = ""
    plan: Plan = False

    async def do(self, place: Place) -> ChangedLimit:
        """Take it back. Raises: as `remove_limit`."""
        return await remove_limit(place.ledger, self.limit, reason=self.reason, by=place.by, plan=self.plan)

    def say(self, found: ChangedLimit) -> Iterator[str]:
        """Say what holds now, and what held before."""
        yield from _told(found, plan=self.plan)


def _told(found: ChangedLimit, *, plan: bool) -> Iterator[str]:
    before, after = _words(found.before), _words(found.after)
    was = f" (before: {before})" if before != after else ""
    is_, would_be = ("is removed", "would be removed") if found.after is None else ("is", "would be")
    what = "" if found.after is None else f": {after}"
    yield f"limit {found.limit} {would_be if plan else is_}{what}{was}"
    if found.after is None:
        yield Note(
            "jobs that name it stay held until it is set again, by a person or by the code that has it"
        )
    elif (found.source_before, found.source) == ("code", "operator"):
        yield Note(
            f"the code does not change it from here on; `jobledger limits remove {found.limit}` gives it back"
        )
    elif found.source == "code":
        yield Note("that is as the code has it, which may change it")
    if plan:
        yield "nothing was changed"


def _words(terms: Terms | None) -> str:
    return "not set" if terms is None else terms_words(terms)

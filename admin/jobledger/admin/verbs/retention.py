"""Retention verbs: say how long the ledger keeps events and where they go then, and see how that goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from jobledger.admin.amounts import size
from jobledger.admin.keeper import keeper_of
from jobledger.admin.verbs.kit import Facts, Place, Reason, Told, Verb, option, verb
from jobledger.audit.watch import audited
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.retention import (
    EVERY_S_MAX,
    EVERY_S_MIN,
    MAIN,
    RETENTION,
    SPAN_S_MAX,
    Retention,
    RetentionState,
    decide,
    retention_words,
)
from jobledger.ledger.model.retention import SetRetention as Command
from jobledger.ledger.named_values import change

_WRITES: Final = ("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT")
_SHARE: Final = "X"


class RetentionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How long a ledger keeps its events, and the work of its keeper."""

    terms: Retention
    words: str  #: the terms in words, for a person
    changed_at: Moment | None  #: None: nobody changed it yet
    changed_by: str
    sequence: int  #: stream sequence of the change; 0: there was none
    stored_bytes: int  #: bytes in the ledger
    bytes_max: int | None  #: the most bytes that it may hold; None: no limit
    keeper: str  #: process of the keeper, `<host>:<pid>`; "": there is none
    archive: str  #: folder to which the keeper moves events; "": none
    trouble: str  #: why it could not move them at its last look; "" if it could, or had none to move
    archived_at: Moment | None  #: when events were moved last; None: never
    archived_through: int | None  #: last stream sequence that was moved
    forgotten_at: Moment | None  #: when an export was removed from the archive last; None: never
    forgotten_through: int | None  #: its last stream sequence


@verb(
    "retention set",
    "PUT /v1/retention",
    permission="admin",
    summary="Say how long events stay in the ledger",
    problems=_WRITES,
    creates=True,
)
class SetRetention(Verb[RetentionInfo], frozen=True, kw_only=True):
    """Say how long events stay in the ledger, and where they are moved then; what is not named stays as it is."""

    keep_s: (
        Annotated[
            float,
            option(
                "Move nothing younger, and so remember ids as long. (default: 30d)",
                "SPAN",
                ge=0,
                le=SPAN_S_MAX,
            ),
        ]
        | UnsetType
    ) = UNSET
    start: (
        Annotated[
            float,
            option("Move events above this share of the ledger's room. (default: 0.6)", _SHARE, gt=0, le=1),
        ]
        | UnsetType
    ) = UNSET
    aim: (
        Annotated[float, option("Down to this share of it. (default: 0.4)", _SHARE, ge=0, lt=1)] | UnsetType
    ) = UNSET
    every_s: (
        Annotated[float, option("How often to look. (default: 5m)", "SPAN", ge=EVERY_S_MIN, le=EVERY_S_MAX)]
        | UnsetType
    ) = UNSET
    max_age_s: Annotated[
        float | UnsetType | None, option("Move what is older, though there is room.", "SPAN|none")
    ] = UNSET
    rows_keep_s: Annotated[
        float | UnsetType | None,
        option("Projections drop moved jobs so long after their end; none: never.", "SPAN|none"),
    ] = UNSET
    forget_after_s: Annotated[
        float | UnsetType | None,
        option("Remove the oldest exports once all their events are older; none: never.", "SPAN|none"),
    ] = UNSET
    to: Annotated[
        str | UnsetType | None,
        option("Archive: a folder of the keeper's machine, or a URI; none: move nothing.", "DIR|URI|none"),
    ] = UNSET
    reason: Reason = ""

    def __post_init__(self) -> None:
        """Refuse a wish that changes nothing, or an empty place. Raises: InvalidInputError."""
        if not self.changes:
            raise InvalidInputError(
                "say what is to change: keep, start, aim, every, max_age, rows_keep, forget_after or to"
            )
        if self.to == "":  # perhaps an unset variable of a script: it would remove the archive's place
            raise InvalidInputError(
                "to is empty: give the whole path of the archive's folder, or none to move nothing from now on"
            )

    @property
    def changes(self) -> dict[str, Any]:
        """The given changes, by the names of `Retention`."""
        said = {
            name: value for name in Retention.__struct_fields__ if (value := getattr(self, name)) is not UNSET
        }
        return said | ({"to": said["to"] or ""} if "to" in said else {})

    async def do(self, place: Place) -> RetentionInfo:
        """Set it. Raises: InvalidInputError, and what appending raises."""
        command = Command(changes=self.changes, reason=self.reason)
        await change(
            place.ledger,
            RETENTION,
            MAIN,
            lambda before, stamp: decide(before, command, stamp),
            by=place.by,
        )
        return await retention_now(place.ledger)

    def say(self, found: RetentionInfo) -> Iterator[Told]:
        """Say what holds now."""
        yield found.words


@verb(
    "retention show",
    "GET /v1/retention",
    permission="view",
    summary="Show how long events stay in the ledger",
    problems=("LEDGER_DAMAGED",),
)
class ShowRetention(Verb[RetentionInfo], frozen=True, kw_only=True):
    """Show how long events stay in the ledger, who moves them, and when that was done last."""

    async def do(self, place: Place) -> RetentionInfo:
        """Read it. Raises: as `retention_now`."""
        return await retention_now(place.ledger)

    def say(self, found: RetentionInfo) -> Iterator[Told]:
        """Say what holds, and how it goes."""
        yield found.words
        room = "" if found.bytes_max is None else f" of {size(found.bytes_max)}"
        yield Facts(
            [
                ("ledger holds", f"{size(found.stored_bytes)}{room}"),
                ("keeper", f"{found.keeper}, into {found.archive or 'no place'}" if found.keeper else "none"),
                ("trouble", found.trouble or None),
                ("moved last", found.archived_at),
                (
                    "up to",
                    None if found.archived_through is None else f"stream sequence {found.archived_through:,}",
                ),
                ("forgotten last", found.forgotten_at),
                (
                    "up to",
                    None
                    if found.forgotten_through is None
                    else f"stream sequence {found.forgotten_through:,}",
                ),
                ("set", found.changed_at),
                ("by", found.changed_by or None),
            ]
        )


async def retention_now(ledger: Ledger) -> RetentionInfo:
    """Return how long the ledger keeps its events, and how that goes. Raises: CorruptLedgerError, UnreachableError."""
    state: RetentionState | None = (await look(ledger.log, RETENTION, MAIN)).state
    keeper, head, seen = await keeper_of(ledger), await ledger.log.head(), await audited(ledger.log)
    forgotten = await forgotten_past(ledger.log)
    terms = Retention() if state is None else state.terms
    return RetentionInfo(
        terms=terms,
        words=retention_words(terms),
        changed_at=None if state is None else state.at,
        changed_by="" if state is None else state.by,
        sequence=0 if state is None else state.sequence,
        stored_bytes=head.stored_bytes,
        bytes_max=head.bytes_max,
        keeper="" if keeper is None else f"{keeper.host}:{keeper.pid}",
        archive="" if keeper is None else keeper.archive,
        trouble="" if keeper is None else keeper.trouble,
        archived_at=seen.archived_at,
        archived_through=seen.archived_through,
        forgotten_at=None if forgotten is None else forgotten.at,
        forgotten_through=None if forgotten is None else forgotten.through_sequence,
    )

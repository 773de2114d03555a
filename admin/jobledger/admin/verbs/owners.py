"""Owner verbs: erase what is sealed under an owner's key, hold it, and see owners."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

from jobledger.admin.erasure import Erasure, ErasureWish, erase, plan_erasure
from jobledger.admin.owners import OwnerInfo, OwnerPhase, Owners, change_owner, list_owners, owner_now
from jobledger.admin.verbs.kit import Facts, Note, Place, Plan, Reason, Table, Told, Verb, option, verb
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.owner import GRACE_S, GRACE_S_MAX, BeginErasing, HoldOwner, UnholdOwner
from jobledger.ledger.model.times import shown_time

Owner = Annotated[str, option("Whose data: kind:id, as person:17.", "OWNER")]
_WRITES: Final = ("REFUSED", "JOB_INVALID_INPUT", "LEDGER_FULL", "LEDGER_BUSY")
_GOES_ON: Final = 202


@verb(
    "erase",
    "POST /v1/owners/{owner}/erase",
    permission="erase",
    summary="Erase the data of an owner",
    problems=("NOT_FOUND", "PROJECTION_BEHIND", *_WRITES),
    also=(_GOES_ON,),
    reads_rows=True,
    has_own_command=True,
)
class EraseOwner(Verb[Erasure], frozen=True, kw_only=True):
    """Destroy the key of an owner, so that nobody can read what was sealed under it, wherever a copy is.

    First nothing new of the owner begins, open jobs are cancelled, and dead letters are discarded. The same request
    continues an interrupted erasure; until it is done, the answer says when to ask again.
    """

    owner: Owner
    request: Annotated[str, option("What asked for it: the number of a letter or of a ticket.", "TEXT")] = ""
    grace_s: Annotated[
        float,
        option(
            "Time for what cancelled jobs undo, which needs their inputs. (default: 5m)",
            "SPAN",
            ge=0,
            le=GRACE_S_MAX,
        ),
    ] = GRACE_S
    reason: Reason = ""
    plan: Plan = False

    async def do(self, place: Place) -> Erasure:
        """Begin it or go on with it. Raises: InvalidInputError without a reason; as `erase`."""
        if not self.reason and not self.plan:
            raise InvalidInputError("say why the data is erased: reason is empty")
        begin = BeginErasing(number=0, grace_s=self.grace_s, request=self.request, reason=self.reason)
        wish = ErasureWish(self.owner, begin, place.by)
        return await (plan_erasure if self.plan else erase)(place.ledger, place.rows, wish)

    def status_of(self, found: Erasure) -> int | None:
        """Say of an erasure that is not done that it goes on."""
        return _GOES_ON if found.state == "erasing" else None

    def say(self, found: Erasure) -> Iterator[Told]:
        """Say what became of the key and of the jobs, and what is left."""
        counts = f"{found.jobs:,} jobs, of these {found.living:,} have not ended, {found.dead_letters:,} are dead letters"
        counts += f"; {found.schedules:,} schedules" if found.schedules else ""
        match found.state:
            case "planned":
                yield f"key {found.key} would be destroyed: {counts}"
                yield "nothing was changed"
            case "erasing":
                assert found.next_at is not None, "an erasure that is not done goes on at some time"
                what = "is destroyed" if found.destroyed_at is not None else "will be destroyed"
                yield f"key {found.key} {what}: {counts}"
                yield f"go on at {shown_time(found.next_at)} or later, by the same command"
            case "erased":
                at = "" if found.destroyed_at is None else f" at {shown_time(found.destroyed_at)}"
                yield f"key {found.key} was destroyed{at}: nobody can read what was sealed under it"
        if found.state == "erased" and found.masters:
            yield Note(
                f"copies of the bucket of keys that were made before can be opened with {', '.join(found.masters)}, until "
                "you destroy that master key"
            )
        elif found.state != "planned" and not found.masters:
            yield Note(
                f"the bucket of keys lost the key {found.key} before it was destroyed: a copy that was made before, such as "
                "a file of `jobledger owners backup`, still opens with the master key of its time, so destroy such copies"
            )


@verb(
    "owners list",
    "GET /v1/owners",
    permission="view",
    summary="List owners",
    problems=("LEDGER_DAMAGED", "PROJECTION_BEHIND"),
    reads_rows=True,
    is_list=True,
)
class ListOwners(Verb[Owners], frozen=True, kw_only=True):
    """List owners by their names: those who have jobs in the ledger, and those who are held or erased."""

    state: Annotated[OwnerPhase | None, option("Only these: open, held, erasing or erased.", "STATE")] = None
    after: Annotated[str, option("Those after this one, for the next page.", "OWNER")] = ""
    limit: Annotated[int, option("How many owners at most. (default: 100)", "N", ge=1, le=1_000)] = 100

    async def do(self, place: Place) -> Owners:
        """List them. Raises: as `list_owners`."""
        return Owners(items=await list_owners(place.ledger, place.rows, self.state, self.after, self.limit))

    def say(self, found: Owners) -> Iterator[Told]:
        """Yield a table of them."""
        if not found.items:
            of_state = "no job has an owner" if self.state is None else f"no owner is {self.state}"
            yield f"no such owner comes after {self.after}" if self.after else of_state
            return
        yield Table(
            ("owner!", "state", "jobs>"), [(each.owner, each.state, each.jobs) for each in found.items]
        )


class OwnerVerb(Verb[OwnerInfo], frozen=True, kw_only=True):
    """An act on one owner, or a question about one."""

    owner: Owner

    def say(self, found: OwnerInfo) -> Iterator[Told]:
        """Say what holds, and who has said so."""
        yield f"owner {found.owner}: {found.words}"
        yield Facts(
            [
                ("key", found.key or "none"),
                ("wrapped by", found.master or None),
                ("destroyed", found.destroyed_at),
                ("copies open with", _masters_of_copies(found)),
                ("jobs begin", "no" if found.is_closed else None),
                ("recorded", found.changed_at),
                ("by", found.changed_by or None),
                ("reason", found.reason or None),
            ]
        )


def _masters_of_copies(found: OwnerInfo) -> str | None:
    if found.destroyed_at is None:
        return None
    return (
        ", ".join(found.masters)
        or "master keys of their time: the bucket lost the key before it was destroyed"
    )


@verb(
    "owners show",
    "GET /v1/owners/{owner}",
    permission="view",
    summary="Show an owner",
    problems=("NOT_FOUND", "REFUSED", "JOB_INVALID_INPUT", "LEDGER_DAMAGED"),
)
class ShowOwner(OwnerVerb, frozen=True, kw_only=True):
    """Show an owner: whether the data is held or erased, and which master key wraps the owner's key."""

    async def do(self, place: Place) -> OwnerInfo:
        """Read it. Raises: as `owner_now`."""
        return await owner_now(place.ledger, self.owner)


@verb(
    "owners hold",
    "POST /v1/owners/{owner}/hold",
    permission="erase",
    summary="Hold the data of an owner",
    problems=_WRITES,
)
class HoldOwnersData(OwnerVerb, frozen=True, kw_only=True):
    """Hold the data of an owner: it cannot be erased until the hold ends or is lifted."""

    until: Annotated[
        datetime | None, option("End the hold at this time, or after a span such as 30d.", "TIME")
    ] = None
    reason: Reason = ""

    async def do(self, place: Place) -> OwnerInfo:
        """Hold it. Raises: as `change_owner`."""
        command = HoldOwner(until=self.until, reason=self.reason)
        return await change_owner(place.ledger, self.owner, command, by=place.by)


@verb(
    "owners unhold",
    "POST /v1/owners/{owner}/unhold",
    permission="erase",
    summary="Lift the hold of an owner's data",
    problems=_WRITES,
)
class UnholdOwnersData(OwnerVerb, frozen=True, kw_only=True):
    """Lift the hold of an owner's data: it may be erased again."""

    reason: Reason = ""

    async def do(self, place: Place) -> OwnerInfo:
        """Lift it. Raises: as `change_owner`."""
        return await change_owner(place.ledger, self.owner, UnholdOwner(reason=self.reason), by=place.by)

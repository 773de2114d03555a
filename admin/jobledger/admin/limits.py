"""What a person does to limits: set one, or what differs for one key of it; remove it; see what it is and was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.ledger.client import Ledger
from jobledger.ledger.limits.definitions import change
from jobledger.ledger.limits.in_code import CodeLimit, differing, limits_in_code
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.errors import InvalidInputError, LimitNotFoundError, NotFoundError, RefusedError
from jobledger.ledger.model.inputs import checked_limits
from jobledger.ledger.model.limits.definition import (
    LIMIT,
    Definition,
    LimitCommand,
    Override,
    SetKey,
    SetLimit,
    Source,
    Terms,
    override_of,
)
from jobledger.ledger.model.limits.names import RESERVED, UNNAMED, split


class ChangedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a limit, or for one key of it, before and after what a person did; None: nothing, so jobs stay held."""

    limit: str  #: `name` or `name:key`
    before: Terms | None
    after: Terms | None
    #: Who set it: code, or a person, whom code never overrides; None: nobody, or the key has nothing of its own.
    source_before: Source | None = None
    source: Source | None = None


class ShownLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as it is, and how it became so."""

    limit: str  #: `name` or `name:key`
    terms: Terms | None  #: what holds for it; None: it was removed
    definition: Definition
    in_code: tuple[CodeLimit, ...]  #: the running workers whose code has other numbers, and what it has
    history: tuple[Change, ...]  #: the newest first, at most twenty


async def set_limit(
    ledger: Ledger, limit: str, changes: Mapping[str, Any], *, reason: str = "", by: str, plan: bool = False
) -> ChangedLimit:
    """Change some numbers of a limit, or of one key of it; what `changes` does not name stays as it is.

    `changes`: fields of `Terms`; None means no bound, for a key the limit's value. Empty `queues` and `tasks` remove
    the patterns of jobs that may name it. `plan`: change nothing.

    Raises: InvalidTokenError, InvalidInputError; RefusedError for a key of a limit that is not set; UnreachableError.
    """
    name, key = _named(limit)
    if (key or name in UNNAMED) and changes.keys() & {"queues", "tasks"}:
        raise InvalidInputError(
            f"{limit} is no limit of which is said who may name it: that is said of all keys of a limit at once"
        )

    def wish(before: Definition | None) -> LimitCommand:
        common = None if before is None else before.common
        if not key:
            terms = msgspec.structs.replace(common or Terms(), **changes)
            return SetLimit(terms=terms, reason=reason)
        if common is None and name not in RESERVED:
            raise RefusedError(
                f"limit {name} is not set, so nothing can differ for {key}: "
                f"set it first, as with `jobledger limits set {name} --slots 10`"
            )
        known = Override() if before is None else before.overrides.get(key, Override())
        return SetKey(key=key, override=msgspec.structs.replace(known, **changes), reason=reason)

    return await _change(ledger, limit, wish, by=by, plan=plan)


async def remove_limit(
    ledger: Ledger, limit: str, *, reason: str = "", by: str, plan: bool = False
) -> ChangedLimit:
    """Take back a person's terms of a limit, or of one key; then the terms in a running worker's code are in force.

    If no running worker's code has the limit, its definition is removed with the differences of its keys, so that its
    jobs stay held. A key without terms of its own has those of the other keys.

    Raises: InvalidTokenError, InvalidInputError, LimitNotFoundError, NotFoundError, UnreachableError.
    """
    name, key = _named(limit)
    in_code = next(iter(limits_in_code(await ledger.leases.all()).get(limit, ())), None)

    def wish(before: Definition | None) -> LimitCommand:
        by_person = before is not None and before.is_set and before.author(key).source == "operator"
        if not key:
            if in_code is not None and by_person:
                return SetLimit(terms=in_code.terms, source="code", given_back=True, reason=reason)
            return Remove(reason=reason)
        if before is None or before.common is None:
            raise LimitNotFoundError(name)
        if key not in before.overrides:
            raise NotFoundError(
                f"limit {name} has nothing that differs for {key}: `jobledger limits show {name}`"
            )
        if in_code is not None and by_person:
            own = override_of(in_code.terms)
            return SetKey(key=key, override=own, source="code", given_back=True, reason=reason)
        return SetKey(key=key, override=None, reason=reason)

    return await _change(ledger, limit, wish, by=by, plan=plan)


def _named(limit: str) -> tuple[str, str]:
    """Return a limit's name and key. Raises: InvalidTokenError, InvalidInputError."""
    return split(checked_limits([limit])[0])


async def _change(
    ledger: Ledger,
    limit: str,
    wish: Callable[[Definition | None], LimitCommand],
    *,
    by: str,
    plan: bool,
) -> ChangedLimit:
    name, key = split(limit)
    done = await change(ledger.log, name, wish, lambda: ledger.stamp(by), plan=plan)
    ledger.code_limits.forget(name)
    return ChangedLimit(
        limit=limit,
        before=None if done.before is None else done.before.of(key),
        after=done.state.of(key),
        source_before=_source(done.before, key),
        source=_source(done.state, key),
    )


def _source(limit: Definition | None, key: str) -> Source | None:
    if limit is None or not limit.is_set or (key and key not in limit.overrides):
        return None
    return limit.author(key).source


async def show_limit(ledger: Ledger, limit: str) -> ShownLimit:
    """Return a limit, or one key of it, as its chain says now.

    Raises: InvalidTokenError, InvalidInputError, LimitNotFoundError for one that was never defined, UnreachableError.
    """
    name, key = _named(limit)
    missing = LimitNotFoundError(name)
    definition, history = await state_and_changes(ledger.log, LIMIT, name, missing=missing)
    terms, in_code = definition.of(key), limits_in_code(await ledger.leases.all())
    return ShownLimit(
        limit=limit,
        terms=terms,
        definition=definition,
        in_code=tuple(differing(limit, terms, in_code)),
        history=history,
    )

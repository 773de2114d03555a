"""Limits: what holds for each, and how much of it is taken."""

from __future__ import annotations

import msgspec

from jobledger.admin.objects.fleet import LimitListed, LimitMissing, limits_listed
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.scoped import limits_for
from jobledger.ledger.model.limits.definition import Terms, terms_words
from jobledger.ledger.model.limits.names import joined


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, or one key of it."""

    limit: str  #: `name` or `name:key`
    row: LimitListed
    words: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    limits: list[LimitLine]
    missing: list[LimitMissing]


async def limits(looked: Looked, *, query: When) -> Limits:
    """Return the limits that are defined, and those that jobs name and nobody defined."""
    past = query.as_of()
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        rows, missing = limits_for(looked.principal, limits_listed(view.store))
        return Limits(
            shell=shell,
            limits=[_line(row) for row in rows],
            missing=missing,
        )


def _line(row: LimitListed) -> LimitLine:
    terms = msgspec.convert({name: getattr(row, name) for name in Terms.__struct_fields__}, Terms)
    return LimitLine(limit=joined(row.name, row.key), row=row, words=terms_words(terms))

"""Limits: what holds for each, and how much of it is taken."""

from __future__ import annotations

import msgspec

from jobledger.admin.objects.fleet import LimitListed, LimitMissing, limits_listed, row_terms, taken_words
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.scoped import limits_for
from jobledger.ledger.model.limits.definition import terms_words
from jobledger.ledger.model.limits.names import joined


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, or one key of it."""

    limit: str  #: `name` or `name:key`
    row: LimitListed
    words: str
    taken: str
    in_code: list[tuple[str, str]]  #: a running worker whose code has other numbers, and these; none without


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
        workers = [] if past else await looked.gateway.ledger.leases.all()
        rows, missing = limits_for(looked.principal, limits_listed(view.store, workers))
        return Limits(
            shell=shell,
            limits=[_line(row) for row in rows],
            missing=missing,
        )


def _line(row: LimitListed) -> LimitLine:
    in_code = [(each.worker, terms_words(each.terms)) for each in row.in_code[:1]]
    return LimitLine(
        limit=joined(row.name, row.key),
        row=row,
        words=terms_words(row_terms(row)),
        taken=taken_words(row),
        in_code=in_code,
    )

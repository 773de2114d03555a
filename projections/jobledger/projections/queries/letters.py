"""Dead letters one by one and by cause, and what people did: page by page, each with the cursor of the next."""

from __future__ import annotations

import msgspec

from jobledger.projections.filters import DeadLetterFilter, Term, joined
from jobledger.projections.queries.cursors import make_cursor, read_cursor, without_times
from jobledger.projections.queries.lanes import Order, Select
from jobledger.projections.queries.rows import (
    ACT_COLUMNS,
    DEAD_LETTER_COLUMNS,
    DeadLetterGroup,
    DeadLetterRow,
    act_row,
    struct,
)
from jobledger.projections.tables.acts import ActFilter, ActRow


class FoundDeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters, by the time they became one."""

    items: list[DeadLetterRow]
    next: str | None  #: the cursor of the page behind; None: there is none


class FoundGroups(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters by cause, the most frequent first."""

    items: list[DeadLetterGroup]
    next: str | None  #: the cursor of the page behind; None: there is none


class FoundActs(msgspec.Struct, frozen=True, kw_only=True):
    """One page of what people did, the newest first."""

    items: list[ActRow]
    next: str | None  #: the cursor of the page behind; None: there is none


def find_letters(
    select: Select, chosen: DeadLetterFilter, *, cursor: str | None, limit: int, order: Order
) -> FoundDeadLetters:
    """Return a page of dead letters; see `Store.dead_letter_page`."""
    question = ("dead letters", without_times(chosen), order)
    terms = chosen.terms()
    sign, direction = ("<", "DESC") if order == "newest" else (">", "ASC")
    if cursor is not None:
        after = read_cursor(question, cursor, str, int)
        terms.append(Term("", f"(dead_at, last_sequence) {sign} (?, ?)", after))
    where, values = joined(terms)
    sql = (
        f"SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters WHERE {where} "  # noqa: S608 - our own columns
        f"ORDER BY dead_at {direction}, last_sequence {direction} LIMIT ?"
    )
    items = [struct(DeadLetterRow, row) for row in select(sql, (*values, limit + 1))]
    end = items[limit - 1] if len(items) > limit else None
    following = None if end is None else make_cursor(question, end.dead_at, end.last_sequence)
    return FoundDeadLetters(items=items[:limit], next=following)


def find_groups(select: Select, chosen: DeadLetterFilter, *, cursor: str | None, limit: int) -> FoundGroups:
    """Return a page of groups; see `Store.dead_letter_group_page`."""
    question = ("groups", without_times(chosen))
    where, values = chosen.where()
    having = "1"
    after: tuple[str | int, ...] = ()
    if cursor is not None:
        count, fingerprint = read_cursor(question, cursor, int, str)
        having, after = "n < ? OR (n = ? AND fingerprint > ?)", (count, count, fingerprint)
    # With max() as the only min or max in it, SQLite takes the other columns from the row that has it.
    newest = (
        "SELECT fingerprint, count(*) AS n, task, reason, error_type, error, queue, job_id, max(dead_at) "  # noqa: S608
        f"FROM dead_letters WHERE {where} GROUP BY fingerprint HAVING {having} ORDER BY n DESC, fingerprint LIMIT ?"
    )
    oldest = f"SELECT min(dead_at) FROM dead_letters WHERE fingerprint = g.fingerprint AND {where}"  # noqa: S608
    sql = f"SELECT g.*, ({oldest}) FROM ({newest}) AS g ORDER BY n DESC, fingerprint"  # noqa: S608
    items = [struct(DeadLetterGroup, row) for row in select(sql, (*values, *values, *after, limit + 1))]
    end = items[limit - 1] if len(items) > limit else None
    following = None if end is None else make_cursor(question, end.count, end.fingerprint)
    return FoundGroups(items=items[:limit], next=following)


def find_acts(select: Select, chosen: ActFilter, *, cursor: str | None, limit: int) -> FoundActs:
    """Return a page of acts; see `Store.act_page`."""
    question = ("acts", msgspec.structs.replace(chosen, since=None))
    where, values = chosen.where()
    if cursor is not None:
        where, values = f"{where} AND stream_sequence < ?", [*values, *read_cursor(question, cursor, int)]
    sql = f"SELECT {ACT_COLUMNS} FROM acts WHERE {where} ORDER BY stream_sequence DESC LIMIT ?"  # noqa: S608
    items = [act_row(row) for row in select(sql, (*values, limit + 1))]
    end = items[limit - 1] if len(items) > limit else None
    following = None if end is None else make_cursor(question, end.stream_sequence)
    return FoundActs(items=items[:limit], next=following)

"""A person's own query in SQL over the tables and views of a projection, which can only read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.projections import files

_BUSY_S: Final = 5.0
#: SQLite checks the time limit after this many steps, about every millisecond.
_STEPS: Final = 50_000
_ALLOWED: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
#: Functions of SQL that can reach beyond the rows.
_REFUSED: Final = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    has_more: bool  #: True if there are more rows than the limit


def ask(path: Path, query: str, values: Mapping[str, Any], *, rows_max: int, limit_s: float) -> SqlAnswer:
    """Return the rows of one SELECT (or WITH) over a projection; blocks for at most `limit_s` seconds.

    `values`: value for each `:name` in the statement.

    Raises: InvalidInputError for SQL that cannot be run, with SQLite's reason, or that takes too long;
        ProjectionFileError and the other errors of the file.
    """
    connection = files.open_reader(path, busy_timeout_s=_BUSY_S)
    try:
        connection.set_authorizer(_may)
        until = time.monotonic() + limit_s
        connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
        cursor = connection.execute(query, dict(values))
        if cursor.description is None:
            raise InvalidInputError("the SQL asks for nothing: give one SELECT")
        rows = cursor.fetchmany(rows_max + 1)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname == "SQLITE_INTERRUPT":
            sentence = (
                f"the SQL took longer than {limit_s:g} s: ask for less, or allow it more time (--timeout)"
            )
            raise InvalidInputError(sentence) from error
        raise _refusal(error) from error
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _refusal(error) from error
    finally:
        connection.close()
    columns = tuple(str(each[0]) for each in cursor.description)
    return SqlAnswer(columns=columns, rows=rows[:rows_max], has_more=len(rows) > rows_max)


def _may(action: int, first: str | None, second: str | None, *_: object) -> int:
    name = second if action == sqlite3.SQLITE_FUNCTION else first
    is_allowed = action in _ALLOWED and (name or "").lower() not in _REFUSED
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _refusal(error: Exception) -> InvalidInputError:
    reason = str(error)
    if reason.startswith("not authorized"):
        reason = "it may read rows and nothing else: give one SELECT"
    return InvalidInputError(f"the SQL cannot be run: {reason}; docs/projections.md lists tables and columns")

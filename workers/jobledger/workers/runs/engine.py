"""One query of a run by DuckDB, in a process of the worker's pool that sees nothing but the tables it was given.

Before the query is run the engine is locked: it opens only the files of these tables, its own result and its own
spilled pages, loads no extension, reads no variable of Python, and no setting can be changed any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.runs.steps import step
from jobledger.ledger.tables.extra import load
from jobledger.ledger.tables.parquet import ROW_GROUP_ROWS, describe
from jobledger.ledger.tables.record import ProducedFile

#: A query may spill this many times its memory onto the disk.
_SPILL_SHARE: Final = 16


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one query."""

    memory_bytes: int
    threads: int


@step(run_in="process")
def select(
    query: str, views: dict[str, str], folder: str, limits: EngineLimits, rows_max: int | None = None
) -> ProducedFile:
    """Write the rows of a query into `result.parquet` in `folder`, a new folder that nothing else uses.

    `views`: names that the query may use, with the paths of their Parquet files. `rows_max`: how many of its rows are
    written; None: all.

    Raises: InvalidInputError for anything but one SELECT; ConfigurationError; duckdb.Error.
    """
    result = Path(folder) / "result.parquet"
    connection = open_locked(views, Path(folder), [str(result)], limits)
    try:
        relation = connection.sql(_only_select(connection, query))
        if rows_max is not None:
            relation = relation.limit(rows_max)
        relation.write_parquet(str(result), compression="zstd", row_group_size=ROW_GROUP_ROWS)
    finally:
        connection.close()
    return describe(result)


def open_locked(views: dict[str, str], folder: Path, writable: list[str], limits: EngineLimits) -> Any:
    """Return a connection to an empty database that has these views, and is locked. Raises: ConfigurationError."""
    settings = {
        "memory_limit": f"{limits.memory_bytes}B",
        "threads": str(limits.threads),
        "temp_directory": str(folder / "spilled"),
        "max_temp_directory_size": f"{_SPILL_SHARE * limits.memory_bytes}B",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
    }
    connection = load("duckdb").connect(":memory:", config=settings)
    for name, path in views.items():
        view = f"CREATE VIEW {_name(name)} AS SELECT * FROM read_parquet({_text(path)})"  # noqa: S608 - quoted
        connection.execute(view)
    connection.execute("SET TimeZone = 'UTC'")
    allowed = ", ".join(_text(path) for path in (*views.values(), *writable))
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _only_select(connection: Any, query: str) -> str:
    """Return the one statement of a query. Raises: InvalidInputError."""
    statements = connection.extract_statements(query)
    kinds = [statement.type for statement in statements]
    if len(kinds) != 1 or kinds[0] != load("duckdb").StatementType.SELECT:
        found = ", ".join(str(kind).rpartition(".")[2] for kind in kinds) or "nothing"
        raise InvalidInputError(f"a query of tables is one SELECT, got {found}")
    return str(statements[0].query)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

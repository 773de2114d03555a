"""The table of an outbox: what it is made of, and the statements that read and change it, for each kind of database."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from jobledger.ledger.model.errors import ConfigurationError

Dialect = Literal["postgresql", "sqlite"]
TABLE: Final = "jobledger_outbox"
#: Of LISTEN and NOTIFY: a statement that inserted rows was committed.
CHANNEL: Final = "jobledger_outbox"
#: At most this many bytes of orders are read at once, beside the first one.
_BATCH_BYTES_MAX: Final = 16 << 20

_POSTGRESQL: Final = (
    f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    written_order text NOT NULL,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused_at timestamptz,
    refusal text
)""",
    # What was refused stays, and the relay does not read over it again and again.
    f"CREATE INDEX IF NOT EXISTS {TABLE}_waiting ON {TABLE} (number) WHERE refused_at IS NULL",
    f"""CREATE OR REPLACE FUNCTION {TABLE}_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{CHANNEL}', '');
    RETURN NULL;
END
$$""",
    f"DROP TRIGGER IF EXISTS {TABLE}_notify ON {TABLE}",
    f"""CREATE TRIGGER {TABLE}_notify AFTER INSERT ON {TABLE}
    FOR EACH STATEMENT EXECUTE FUNCTION {TABLE}_notify()""",
)
_SQLITE: Final = (
    # AUTOINCREMENT: the number of a row that was deleted is never that of a later one.
    f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    written_order TEXT NOT NULL,
    added_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    refused_at TEXT,
    refusal TEXT
)""",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_waiting ON {TABLE} (number) WHERE refused_at IS NULL",
)


def schema(dialect: Dialect) -> list[str]:
    """Return the statements that make the table where it is missing, for a migration of one's own.

    Raises: ConfigurationError.
    """
    if dialect not in get_args(Dialect):
        raise ConfigurationError(
            f"an outbox is in one of {' or '.join(get_args(Dialect))}, not in {dialect!r}"
        )
    return list(_POSTGRESQL if dialect == "postgresql" else _SQLITE)


def insertion(value: str) -> str:
    """Return the statement that adds a row; `value`: what stands for the order in the words of the driver."""
    return f"INSERT INTO {TABLE} (written_order) VALUES ({value})"


class Statements(NamedTuple):
    """What the relay and people ask of the table."""

    waiting: str  #: the numbers and orders that wait, the oldest first; takes how many
    delete: str  #: takes numbers
    refuse: str  #: takes the sentence and the number
    retry: str  #: lets refused rows wait again; takes numbers, and whether only those
    discard: str  #: deletes refused rows; takes the same
    counts: str  #: how many wait, are refused, and since when the oldest waits
    rows: str  #: takes whether only refused ones, and how many


def _statements(value: str, among: str, now: str, size: str, *, truth: str) -> Statements:
    """`value` stands for an argument, `among` tests whether the number is among those of one."""
    refused = "refused_at IS NOT NULL"
    chosen = f"{refused} AND ({among} OR {value} = {truth})"
    # A window adds up the sizes before each row, so that few large orders are as many as fit.
    waiting = f"""SELECT number, written_order FROM (
        SELECT number, written_order, sum({size}) OVER (ORDER BY number) - {size} AS before FROM (
            SELECT number, written_order FROM {TABLE} WHERE refused_at IS NULL ORDER BY number LIMIT {value}
        ) AS oldest
    ) AS sized WHERE before < {_BATCH_BYTES_MAX} ORDER BY number"""
    return Statements(
        waiting=waiting,
        delete=f"DELETE FROM {TABLE} WHERE {among}",
        refuse=f"UPDATE {TABLE} SET refused_at = {now}, refusal = {value} WHERE number = {value}",
        retry=f"UPDATE {TABLE} SET refused_at = NULL, refusal = NULL WHERE {chosen}",
        discard=f"DELETE FROM {TABLE} WHERE {chosen}",
        counts=f"SELECT count(*) - count(refused_at), count(refused_at), "
        f"min(CASE WHEN refused_at IS NULL THEN added_at END) FROM {TABLE}",
        rows=f"SELECT number, written_order, added_at, refused_at, refusal FROM {TABLE} "
        f"WHERE {refused} OR {value} = {truth} ORDER BY number LIMIT {value}",
    )


OF_POSTGRESQL: Final = _statements(
    "%s", "number = ANY(%s)", "clock_timestamp()", "octet_length(written_order)", truth="false"
)
OF_SQLITE: Final = _statements(
    "?",
    "number IN (SELECT value FROM json_each(?))",
    "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    "length(CAST(written_order AS BLOB))",
    truth="0",
)

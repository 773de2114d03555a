"""The address of an outbox's database: `postgresql://...` or `sqlite:PATH`. It may hold a password, so no sentence repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.outbox.database import OutboxDatabase

_FILE_BYTES_MAX: Final = 16 << 10
_SQLITE: Final = "sqlite:"
_POSTGRESQL: Final = ("postgresql://", "postgres://")


def open_database(address: str) -> OutboxDatabase:
    """Return the database at an address: `postgresql://...` or `sqlite:PATH`; it connects when it is first asked.

    Raises: ConfigurationError, whose sentence holds nothing of the address but its beginning.
    """
    if address.startswith(_SQLITE):
        from jobledger.ledger.outbox.sqlite import SqliteOutbox  # noqa: PLC0415 - one of two

        path = address.removeprefix(_SQLITE)
        if not path:
            raise ConfigurationError("sqlite: names no file: give sqlite:PATH")
        return SqliteOutbox(Path(path))
    if address.startswith(_POSTGRESQL):
        from jobledger.ledger.outbox.postgresql import PostgresqlOutbox  # noqa: PLC0415 - an extra

        return PostgresqlOutbox(address)
    raise ConfigurationError("the database of an outbox is postgresql://... or sqlite:PATH")


def address_in(file: Path) -> str:
    """Return the address in the first line of a file. Raises: ConfigurationError."""
    try:
        with open_file(file, bytes_max=_FILE_BYTES_MAX) as opened:
            lines = opened.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"{file} cannot be read: {why}") from error
    if not lines or not lines[0].strip():
        raise ConfigurationError(f"{file} is empty: its first line is the address of the database")
    return lines[0].strip()

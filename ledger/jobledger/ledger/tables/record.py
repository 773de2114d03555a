"""What the ledger keeps of a table: the result of the step that made it. The rows lie elsewhere."""

from __future__ import annotations

from datetime import datetime

import msgspec

from jobledger.ledger.model.errors import InvalidInputError


class TableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A table, as the step that made it is recorded to have ended."""

    name: str
    sha256: str  #: hex, of the Parquet file
    rows: int
    bytes: int  #: of the file
    schema: dict[str, str]  #: Arrow types of the columns, in their order
    expires_at: datetime | None  #: UTC; None: it is kept until somebody removes it
    #: Where its file lies in its store: under the run that made it. Steps never share a file, so removing one's file
    #: takes nothing from another step; a run that copied the step reads the same file.
    file: str


class ProducedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file as it was written."""

    sha256: str  #: hex
    rows: int
    bytes: int
    schema: dict[str, str]  #: Arrow types of the columns, in their order


def read_record(text: bytes) -> TableRecord:
    """Return the recorded result of a step as a table. Raises: InvalidInputError for anything else."""
    try:
        return msgspec.json.decode(text, type=TableRecord)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInputError(f"the result is no table: {error}") from error

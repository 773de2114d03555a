"""Errors of a person's requests. Each derives from one of the ledger's kinds, which decide exit codes and statuses.

LedgerError                    the root, of jobledger.ledger
├── InvalidError
│   ├── ArchiveGapError        the exports that were named end before the ledger begins
│   └── ChoiceError            a choice of jobs names none, or names them in two ways
├── NotFoundError
│   ├── JobNotHeldError        no event of the job is there, and events are missing where it was looked for
│   └── JobNotYetError         the job came after the moment that was asked for
└── RefusedError
    ├── NotADeadLetterError    the job is something else, or was revived
    └── TableTooLargeError     a table is too large for its first rows to be read
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from jobledger.admin.amounts import size
from jobledger.ledger.model.errors import InvalidError, NotFoundError, RefusedError
from jobledger.ledger.model.reactor import ForgottenPast


class MissingEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events that lie before the first one that was read."""

    first_sequence: int  #: that of the first event that was read
    is_archived: bool  #: an `archived` event says that the rest was moved; without one it is lost
    is_named: bool  #: part of the archive was named, and not all of it
    forgotten: ForgottenPast | None = None  #: events that the archive has no more, either

    def sentence(self, way: str) -> str:
        """Say what the answer lacks; `way`: the command that reads the archive too, in backticks."""
        begin = f"stream sequence {self.first_sequence}"
        if self.forgotten is not None and self.forgotten.through_sequence >= self.first_sequence - 1:
            return f"{self.forgotten.words}, are gone for good"
        kept = "" if self.forgotten is None else f", but for {self.forgotten.words}"
        if self.is_named:
            return f"the archive that was named begins at {begin}: name the exports before it as well, the oldest first{kept}"
        if self.is_archived:
            return f"events before {begin} were archived, and {way} reads those as well{kept}"
        return (
            f"events before {begin} are lost, since no `archived` event says where they are: "
            "see what `jobledger audit verify` finds"
        )


class ArchiveGapError(InvalidError):
    """Exports that are read before the ledger end before it begins; name those between as well."""

    def __init__(self, place: Path, ends_at: int, begins_at: int) -> None:
        self.place = place
        self.ends_at = ends_at  #: the last stream sequence that the exports hold
        self.begins_at = begins_at  #: the first that the ledger holds
        super().__init__(
            f"archive {place} ends at stream sequence {ends_at}, and the ledger begins at {begins_at}: "
            "name the exports between as well, the oldest first"
        )


class ChoiceError(InvalidError):
    """A choice of jobs names none, or names them both by ids and by conditions; nothing was done."""


class JobNotHeldError(NotFoundError):
    """No event of the job was found, and events are missing where it was searched: the message says where to look."""

    def __init__(
        self, where: str, job_id: str, missing: MissingEvents | None, command: str = "jobledger jobs show"
    ) -> None:
        self.where = where
        self.job_id = job_id  #: the whole id if the projection knows it, else as it was given
        self.missing = missing  #: None: nothing is missing, and no export holds the job
        way = f"`{command} {job_id} --archive DIR`"
        super().__init__(where if missing is None else f"{where}: {missing.sentence(way)}")

    def read_by(self, command: str) -> Self:
        """Return the same error, which names another command that reads the archive."""
        return type(self)(self.where, self.job_id, self.missing, command)


class JobNotYetError(NotFoundError):
    """A job was asked for as of a moment before its first event."""


class NotADeadLetterError(RefusedError):
    """A job was asked for as a dead letter, and is not one, or no longer."""


class TableTooLargeError(RefusedError):
    """A table is too large for its first rows to be read in memory."""

    def __init__(self, run: str, step: str, what: str, limit_bytes: int) -> None:
        """`what`: the part of the table that has more bytes than `limit_bytes`: its file, a row group or a row."""
        self.run = run
        self.step = step
        self.limit_bytes = limit_bytes
        super().__init__(
            f"table {step!r} of run {run} has {what} of more than {size(limit_bytes)}, too large to be shown: "
            f"`jobledger tables export {run} {step} FILE` copies it"
        )

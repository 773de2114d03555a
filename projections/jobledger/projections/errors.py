"""What can go wrong with a projection, as one tree; nothing in it can harm the ledger.

    ProjectionError
    ├── ProjectionConfigError       an option cannot work
    │   ├── CursorMismatchError     a cursor is that of another list, or none
    │   ├── MomentAheadError        a past moment was asked for that is still to come
    │   └── ReadModelDefinitionError  a class cannot be a read model
    ├── ReadModelFailedError        a user's read model raised; nothing of that batch was kept
    ├── ProjectionFileError         the file cannot be used as it is: the sentence says what to run
    │   ├── ProjectionMissingError  there is none yet
    │   ├── UnfitProjectionError    it is no regular file
    │   ├── NotAProjectionError     it belongs to something else, and is never overwritten
    │   ├── DamagedProjectionError  SQLite cannot read it
    │   ├── NewerSchemaError        a newer jobledger wrote it
    │   ├── NewerReadModelError     a newer version of the user's class wrote it
    │   └── OlderSchemaError        an older jobledger wrote it; a projector rebuilds it by itself
    ├── ProjectionBusyError         somebody else holds the file for longer than the limit
    ├── ProjectionStorageError      the disk refused
    ├── MomentArchivedError         a past moment was asked for whose events are no longer in the ledger
    ├── ProjectionTimeoutError      an awaited position was not reached in time
    │   └── ProjectionBehindError   the same, for a file that another process updates
    ├── PositionArchivedError       events were archived that the projection has not read, or cannot be compared with
    ├── PositionMismatchError       file and ledger do not have the same past
    └── EventGapError               an event is missing between the position and what was read

Errors of reading the ledger (`jobledger.ledger.LedgerError`) pass through as they are.
"""

from __future__ import annotations

from pathlib import Path


class ProjectionError(Exception):
    """The root of every error raised by `jobledger.projections`; its text is one sentence fit for a person."""


class ProjectionConfigError(ProjectionError):
    """An option has a value that cannot work; the sentence names option, value and rule."""


class ProjectionFileError(ProjectionError):
    """The projection's file cannot be used as it is."""

    def __init__(self, path: Path, sentence: str) -> None:
        self.path = path
        super().__init__(sentence)


class ProjectionMissingError(ProjectionFileError):
    """There is no file to read from yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, f"there is no projection at {path}: make it with `jobledger projection rebuild`"
        )


class UnfitProjectionError(ProjectionFileError):
    """What has the file's name is a folder, a device, a pipe or a link; it is left alone."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, f"the projection {path} cannot be used: {why}")


class NotAProjectionError(ProjectionFileError):
    """The file belongs to something else; neither projector nor rebuild will touch it."""

    def __init__(self, path: Path) -> None:
        sentence = (
            f"{path} belongs to something else and is left alone: "
            "name another file, or move it away and run `jobledger projection rebuild`"
        )
        super().__init__(path, sentence)


class DamagedProjectionError(ProjectionFileError):
    """SQLite cannot read the file: cut off, overwritten, or never a database."""

    def __init__(self, path: Path, why: object) -> None:
        sentence = (
            f"the projection {path} cannot be read ({why}): everything in it comes from the ledger, "
            "so rebuild it with `jobledger projection rebuild`"
        )
        super().__init__(path, sentence)


class NewerSchemaError(ProjectionFileError):
    """A newer jobledger made the file; this one does not know its tables."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        self.found = found
        self.known = known
        sentence = (
            f"the projection {path} has schema {found} and this version knows {known}: use the newer jobledger, "
            "or rebuild the file for this one with `jobledger projection rebuild`"
        )
        super().__init__(path, sentence)


class NewerReadModelError(ProjectionFileError):
    """A newer version of the same read model made the file.

    It is not rebuilt by itself: while versions change, an old and a new process would undo each other's
    work for ever.
    """

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            path,
            f"{path} was made by version {found} of this read model, and this is version {known}: run the newer one, "
            "or rebuild the file for this one with `jobledger projection rebuild`",
        )


class OlderSchemaError(ProjectionFileError):
    """An older jobledger made the file. A projector rebuilds it by itself; a reader can only say so."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        self.found = found
        self.known = known
        sentence = (
            f"the projection {path} has the older schema {found}, this version needs {known}: "
            "rebuild it with `jobledger projection rebuild`"
        )
        super().__init__(path, sentence)


class ProjectionBusyError(ProjectionError):
    """Another process holds the file's lock for longer than the limit; nothing was changed."""

    def __init__(self, path: Path, waited_s: float) -> None:
        super().__init__(
            f"the projection {path} was locked by another process for {waited_s:g} s: "
            "try again, or end the process that holds it open",
        )


class ProjectionStorageError(ProjectionError):
    """The disk refused to read or write the file; what was committed before stays as it was."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(
            f"the disk refused the projection {path} ({why}): "
            "look at its free space and permissions, nothing half-done was kept",
        )


class ProjectionTimeoutError(ProjectionError):
    """The projection did not reach a stream sequence within the time given."""


class ProjectionBehindError(ProjectionTimeoutError):
    """The rows do not have an awaited event yet: try again, and see whether a projector follows the ledger."""

    def __init__(self, path: Path, wanted: int, reached: int, waited_s: float) -> None:
        self.path = path
        self.wanted = wanted  #: stream sequence
        self.reached = reached  #: stream sequence of the newest event in the rows
        super().__init__(
            f"the projection {path} did not reach stream sequence {wanted} within {waited_s:g} s, it has {reached}: "
            "see whether a projector runs, with `jobledger projection status`",
        )


class CursorMismatchError(ProjectionConfigError):
    """A cursor belongs to a list with other filters or another order, or is none: ask for the first page again."""


class MomentAheadError(ProjectionConfigError):
    """The state as of a moment was asked for that is still to come."""


class MomentArchivedError(ProjectionError):
    """The state as of a moment was asked for whose events were moved to an archive; the ledger begins after it."""

    def __init__(self, what: str, to: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint  #: what to do; "": to read the archive
        self.to = to  #: the moment, as `jobledger replay --to` takes it
        then = (
            f"`jobledger replay --archive DIR --to {to} --into FILE` makes the tables of that moment from it"
        )
        super().__init__(f"{what}: {hint or then}")


class ReadModelDefinitionError(ProjectionConfigError):
    """A class cannot be a read model: it cannot be instantiated, lacks what a model must have, or its tables cannot be created."""


class ReadModelFailedError(ProjectionError):
    """A user's read model raised an exception, or did what only the projector may; nothing of that batch was kept."""

    def __init__(self, model: str, place: str, why: str) -> None:
        self.model = model
        super().__init__(
            f"read model {model} failed {place}: {why}; nothing of this batch was kept, so mend `apply` and start it "
            "again, or raise `version` to have it rebuilt from the first event",
        )


class PositionMismatchError(ProjectionError):
    """The event at the projection's position is not the one it read there.

    Raised on every start, and when another projector of the same file follows another ledger. No row was changed.
    """

    def __init__(self, path: Path, stream_sequence: int, what: str, advice: str = "") -> None:
        self.path = path
        self.stream_sequence = stream_sequence
        advice = advice or (
            "the ledger was rewound, re-created or damaged since; look into that first, then run `jobledger projection "
            "rebuild`"
        )
        super().__init__(
            f"the projection {path} stands at stream sequence {stream_sequence}, but {what}: {advice}"
        )


class PositionArchivedError(ProjectionError):
    """The projection needs events that were moved to an archive: to go on, or to be compared."""

    def __init__(self, path: Path, stream_sequence: int, first_sequence: int, what: str = "") -> None:
        self.path = path
        self.stream_sequence = stream_sequence
        self.first_sequence = first_sequence
        super().__init__(
            what
            or f"the projection {path} stands at stream sequence {stream_sequence}, and the ledger begins at "
            f"{first_sequence}: what lies between was archived before it was read; run `jobledger projection "
            "rebuild`, with --archive for the past to be in it as well",
        )


class EventGapError(ProjectionError):
    """The ledger did not hand out the event that must follow the position. No row was changed."""

    def __init__(self, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            f"stream sequence {expected} is missing, the ledger went on with {found}: events were lost, so the "
            "projection stops; see what `jobledger doctor` finds, and bring the store back from a back-up",
        )

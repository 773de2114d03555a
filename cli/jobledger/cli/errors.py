"""Errors of the command line: the sentence for a person, and the exit code that scripts rely on.

0 done, 1 failed, 2 usage, 3 not found, 4 refused, 5 cannot reach the server, 130 interrupted.
"""

from __future__ import annotations

import re
import sys
from typing import Final, cast

from typer.exceptions import TyperException

from jobledger.cli.text import json_safe, plain
from jobledger.ledger.files import UnfitFileError
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    InputMismatchError,
    InvalidError,
    LedgerError,
    NoDataFolderError,
    NotFoundError,
    RefusedError,
    UnknownTaskError,
    UnreachableError,
)
from jobledger.projections.errors import (
    MomentArchivedError,
    NewerReadModelError,
    NewerSchemaError,
    NotAProjectionError,
    OlderSchemaError,
    PositionArchivedError,
    PositionMismatchError,
    ProjectionBusyError,
    ProjectionConfigError,
    ProjectionError,
    ProjectionMissingError,
    UnfitProjectionError,
)

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
INTERRUPTED: Final = 130

_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (InvalidError, USAGE),
    (NotFoundError, NOT_FOUND),
    (RefusedError, REFUSED),
    (UnreachableError, UNREACHABLE),
    (ProjectionConfigError, USAGE),
    (UnfitFileError, USAGE),
    (UnfitProjectionError, USAGE),
    (ProjectionMissingError, NOT_FOUND),
    (MomentArchivedError, REFUSED),
    (NotAProjectionError, REFUSED),
    (NewerSchemaError, REFUSED),
    (NewerReadModelError, REFUSED),
    (OlderSchemaError, REFUSED),
    (PositionArchivedError, REFUSED),
    (PositionMismatchError, REFUSED),
    (ProjectionBusyError, REFUSED),
)

#: The option that solves an error; the ledger's own sentences name no options of the command line.
_OPTIONS: Final[dict[type[LedgerError], str]] = {
    AmbiguousIdError: "--queue",
    InputMismatchError: "--on-other-input keep",
    NoDataFolderError: "--projection",
    UnknownTaskError: "--app",
}


#: Typer's sentence for a value that is not one of an option's choices.
_CHOICES: Final = re.compile(r"'([^']*)' is not one of ('.*')")


class UsageError(InvalidError):
    """The words of the command contradict each other or cannot be read; nothing was done."""


class ServerEndedError(UnreachableError):
    """The embedded server ended while it was needed."""


class JobNotCompletedError(LedgerError):
    """`enqueue --wait` saw the job end, but not as completed."""


class QueueNotDrainedError(LedgerError):
    """`queues drain` reached its time limit while jobs still ran; the queue stays paused."""


class ProjectionDiffersError(LedgerError):
    """`projection verify` found a row that a rebuilt projection does not have."""


class LedgerNotSoundError(RefusedError):
    """`audit verify` found violations in the ledger; the sentence names the first."""


class RunsDivergeError(RefusedError):
    """`workflows check` found runs that could not go on with this code; the sentence names the first."""


class ArchiveNotWrittenError(LedgerError):
    """`audit archive` could not write to its folder; every event is still in the ledger, or complete in the archive."""


class PastsDifferError(RefusedError):
    """`audit diff` compared two ledgers or exports that differ in a range that both have."""


class StoppedBySignalError(Exception):
    """A signal ended a command that ends by itself otherwise; not KeyboardInterrupt, which event loops report."""


class DemoFailedError(LedgerError):
    """The demo's counts do not agree, or the demo could not finish."""


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error, of jobledger or of another library."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return error.exit_code if isinstance(error, TyperException) else FAILED


def first_of(error: BaseException) -> BaseException:
    """Return the most important error of a group: our own before others, and errors before cancellations."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = [first_of(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    ours = [each for each in members if isinstance(each, LedgerError | ProjectionError)]
    real = [each for each in members if isinstance(each, Exception)]
    return (ours or real or members)[0]


def sentence(error: BaseException) -> str:
    """Return one sentence for a person."""
    if isinstance(error, LedgerError | ProjectionError):
        option = next((name for kind, name in _OPTIONS.items() if isinstance(error, kind)), "")
        return f"{error} ({option})" if option else str(error)
    if isinstance(error, TyperException):
        command = getattr(getattr(error, "ctx", None), "command_path", "jobledger")
        # Words that the library for choices puts first, and that do not help a person.
        text = error.format_message().replace("Value error, ", "").rstrip(".")
        return f"{text}{_near(text)} (see `{command} --help`)"
    if isinstance(error, UnfitFileError):
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"the system refused{where}: {error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error} (run the command again with --debug for a traceback)"


def _near(text: str) -> str:
    """Return a question with the nearest choice if the text is about a word that is none of the choices."""
    found = _CHOICES.search(text)
    if found is None:
        return ""
    import difflib  # noqa: PLC0415 - only for a mistyped word

    words = re.findall(r"'([^']*)'", found[2])
    near = difflib.get_close_matches(found[1].lower().replace("-", "_"), words, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def report(error: BaseException, *, as_json: bool) -> int:
    """Write the error to stderr, as JSON if that was asked for, and return the exit code."""
    code = exit_code(error)
    if isinstance(error, TyperException) and not error.format_message():
        return code  # the help of a group was shown; nothing to add
    text = " ".join(sentence(error).split())
    if as_json:
        import msgspec  # noqa: PLC0415 - `--help` writes no JSON

        body = {"error": {"code": code, "type": type(error).__name__, "message": text}}
        line = json_safe(msgspec.json.encode(body).decode())
    else:
        line = f"jobledger: {plain(text)}"
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    return code

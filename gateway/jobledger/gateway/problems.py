"""Errors as answers over HTTP: the code and status of each class of errors, and the form of a problem.

The form is that of RFC 9457 (problem details). Programs decide by `code`, which is stable; the sentences may change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from jobledger.admin import errors as asked
from jobledger.audit import errors as audit
from jobledger.gateway.remedies import over_http
from jobledger.ledger.files import UnfitFileError
from jobledger.ledger.model import errors as ledger
from jobledger.ledger.model.runs import errors as runs
from jobledger.ledger.subscriptions import errors as subscriptions
from jobledger.ledger.tables.errors import TableExpiredError
from jobledger.projections import errors as projections

MEDIA: Final = "application/problem+json"
_TYPES: Final = "https://jobledger.dev/problems/"
_RETRY_AFTER_S: Final = 1  #: the usual value of Retry-After


class Kind(NamedTuple):
    """The meaning of a code."""

    status: int
    title: str
    retry: bool = False  #: True: the same request may succeed later; the answer says when to try again


#: Every code that the gateway answers with.
KINDS: Final[dict[str, Kind]] = {
    "ACTS_ON_PAST": Kind(400, "The past cannot be changed"),
    "AMBIGUOUS_ID": Kind(409, "Several jobs have this id"),
    "ARCHIVED": Kind(410, "The events are in an archive"),
    "BAD_REQUEST": Kind(400, "The request cannot be read"),
    "BAD_SIGNATURE": Kind(401, "The signature is not right"),
    "BODY_TOO_SLOW": Kind(408, "The body came too slowly"),
    "BUSY": Kind(503, "Too much at once", retry=True),
    "CROSS_SITE": Kind(403, "Not from another site"),
    "CURSOR_MISMATCH": Kind(400, "The cursor is of another list"),
    "DUPLICATE": Kind(409, "It exists already"),
    "ERASED": Kind(410, "The data of the owner is erased"),
    "ENDPOINT_NOT_FOUND": Kind(404, "There is no such address"),
    "IDEMPOTENCY_KEY_REUSED": Kind(422, "The key was used for another request"),
    "ILLEGAL_TRANSITION": Kind(409, "Not in this state"),
    "INPUT_MISMATCH": Kind(409, "The id has another input"),
    "INTERNAL": Kind(500, "The gateway failed"),
    "JOB_ACCESS_DENIED": Kind(403, "Not allowed"),
    "JOB_CANCELLED": Kind(409, "The job was cancelled"),
    "JOB_EXECUTION_ERROR": Kind(500, "The job failed"),
    "JOB_INVALID_INPUT": Kind(400, "The input is not right"),
    "JOB_NOT_FOUND": Kind(404, "There is no such job"),
    "LEDGER_BUSY": Kind(503, "The ledger is busy", retry=True),
    "LEDGER_DAMAGED": Kind(500, "What is stored cannot be trusted"),
    "LEDGER_FULL": Kind(507, "The ledger is full"),
    "LEDGER_THROTTLED": Kind(503, "The ledger is nearly full", retry=True),
    "LEDGER_REFUSED": Kind(500, "The ledger refused"),
    "LEDGER_UNREACHABLE": Kind(503, "The ledger does not answer", retry=True),
    "METHOD_NOT_ALLOWED": Kind(405, "Not this method"),
    "NO_APP": Kind(501, "This gateway runs no jobs"),
    "NO_TABLES": Kind(501, "This gateway reads no tables"),
    "MISDIRECTED": Kind(421, "Not the host that was asked for"),
    "NO_PAST": Kind(400, "This has no past"),
    "NOT_READY": Kind(503, "Not ready", retry=True),
    "NOT_FOUND": Kind(404, "There is no such thing"),
    "PAYLOAD_GONE": Kind(410, "The value is gone"),
    "PAYLOAD_TOO_LARGE": Kind(413, "Too large"),
    "PLAN_EXPIRED": Kind(409, "The plan is too old"),
    "PRECONDITION_FAILED": Kind(412, "It has changed since"),
    "PROJECTION_BEHIND": Kind(503, "The lists are behind", retry=True),
    "PROJECTION_UNFIT": Kind(503, "The lists cannot be read"),
    "PROVIDER_UNREACHABLE": Kind(503, "The provider does not answer", retry=True),
    "RATE_LIMITED": Kind(429, "Too many requests", retry=True),
    "READER_TOO_SLOW": Kind(503, "The reader is too slow", retry=True),
    "REFUSED": Kind(409, "Refused"),
    "RESULT_TIMEOUT": Kind(504, "No result in time", retry=True),
    "SECRET_UNAVAILABLE": Kind(503, "A secret cannot be read", retry=True),
    "SHARE_USED": Kind(429, "Too much open at once", retry=True),
    "STALE_TIMESTAMP": Kind(409, "The request is too old"),
    "TASK_NOT_FOUND": Kind(404, "There is no such task"),
    "UNAUTHENTICATED": Kind(401, "Say who you are"),
    "UNIQUE_KEY_TAKEN": Kind(409, "Another job is this one already"),
}

#: The code of each class of errors; a class that is missing here has the code of its base.
CODE_OF: Final[dict[type[BaseException], str]] = {
    ledger.LedgerError: "INTERNAL",
    ledger.InvalidError: "BAD_REQUEST",
    ledger.InvalidInputError: "JOB_INVALID_INPUT",
    ledger.PayloadTooLargeError: "PAYLOAD_TOO_LARGE",
    ledger.UnknownTaskError: "TASK_NOT_FOUND",
    ledger.NotFoundError: "NOT_FOUND",
    ledger.JobNotFoundError: "JOB_NOT_FOUND",
    ledger.TaskNotFoundError: "TASK_NOT_FOUND",
    ledger.LedgerNotFoundError: "LEDGER_UNREACHABLE",
    asked.JobNotHeldError: "JOB_NOT_FOUND",
    asked.JobNotYetError: "JOB_NOT_FOUND",
    subscriptions.SubscriptionNotFoundError: "NOT_FOUND",
    ledger.RefusedError: "REFUSED",
    ledger.AccessDeniedError: "JOB_ACCESS_DENIED",
    ledger.AmbiguousIdError: "AMBIGUOUS_ID",
    ledger.IllegalTransitionError: "ILLEGAL_TRANSITION",
    runs.StepOverError: "ILLEGAL_TRANSITION",
    runs.SignalKnownError: "DUPLICATE",
    asked.NotADeadLetterError: "ILLEGAL_TRANSITION",
    ledger.JobExistsError: "DUPLICATE",
    ledger.ScheduleExistsError: "DUPLICATE",
    ledger.InputMismatchError: "INPUT_MISMATCH",
    ledger.WrongSequenceError: "LEDGER_BUSY",
    ledger.LockHeldError: "LEDGER_BUSY",
    ledger.LockTimeoutError: "LEDGER_BUSY",
    ledger.UniqueKeyTakenError: "UNIQUE_KEY_TAKEN",
    ledger.LedgerFullError: "LEDGER_FULL",
    ledger.LedgerThrottledError: "LEDGER_THROTTLED",
    ledger.LedgerClosedError: "LEDGER_UNREACHABLE",
    ledger.ForeignLoopError: "INTERNAL",
    ledger.StreamMismatchError: "LEDGER_REFUSED",
    ledger.JetStreamDisabledError: "LEDGER_REFUSED",
    ledger.PermissionRefusedError: "LEDGER_REFUSED",
    ledger.UnsupportedServerError: "LEDGER_REFUSED",
    ledger.ErasedError: "ERASED",
    ledger.UnreachableError: "LEDGER_UNREACHABLE",
    ledger.CorruptLedgerError: "LEDGER_DAMAGED",
    ledger.PayloadMissingError: "PAYLOAD_GONE",
    TableExpiredError: "PAYLOAD_GONE",
    asked.TableTooLargeError: "PAYLOAD_TOO_LARGE",
    audit.ScratchSpaceError: "BUSY",
    ledger.OutcomeError: "JOB_EXECUTION_ERROR",
    ledger.JobFailedError: "JOB_EXECUTION_ERROR",
    ledger.JobCancelledError: "JOB_CANCELLED",
    ledger.ResultTimeoutError: "RESULT_TIMEOUT",
    projections.ProjectionError: "PROJECTION_UNFIT",
    projections.ProjectionConfigError: "BAD_REQUEST",
    projections.CursorMismatchError: "CURSOR_MISMATCH",
    projections.MomentArchivedError: "ARCHIVED",
    projections.ProjectionMissingError: "PROJECTION_BEHIND",
    projections.ProjectionTimeoutError: "PROJECTION_BEHIND",
    projections.ProjectionBusyError: "PROJECTION_BEHIND",
    UnfitFileError: "PROJECTION_UNFIT",
}
_BEHIND: Final = "the lists do not have what was asked for yet: try again in a moment"
_UNREAD: Final = (
    "events were archived before the lists of this gateway had read them: make the lists again on its machine with "
    "`jobledger projection rebuild`, and with --archive DIR for the past to be in them as well"
)
_UNFIT: Final = "the lists of this gateway cannot be used: its log says why, and so does `jobledger projection status` there"
#: Sentences for errors whose own sentences name files of this machine; "": the class's own sentence names none.
_WITHOUT_FILES: Final[dict[type[BaseException], str]] = {
    projections.ProjectionError: _UNFIT,
    projections.PositionArchivedError: _UNREAD,
    projections.ProjectionConfigError: "",
    projections.MomentArchivedError: "",
    projections.ProjectionMissingError: _BEHIND,
    projections.ProjectionTimeoutError: _BEHIND,
    projections.ProjectionBusyError: _BEHIND,
    UnfitFileError: _UNFIT,
    audit.ScratchSpaceError: "the gateway has no room for temporary files: its log says where",
}

_log: Final = logging.getLogger("jobledger.gateway")


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake in a request."""

    path: str  #: its place, as `$.priority`
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why a request was not done, in the form of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str  #: one sentence: what, where, what to do
    code: str  #: stable code for programs
    request_id: str
    errors: tuple[Detail, ...] = ()
    extra: dict[str, Any] = {}  #: facts for programs, such as the line of a bulk request


class ProblemError(Exception):
    """A request cannot be done for a reason of the gateway itself; the text is one sentence for a person."""

    def __init__(
        self,
        code: str,
        sentence: str,
        *,
        errors: tuple[Detail, ...] = (),
        headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        """`headers`: headers of the answer. `extra`: facts for programs."""
        assert code in KINDS, code
        super().__init__(sentence)
        self.code = code
        self.errors = errors
        self.headers = headers or {}
        self.extra = extra


def broken_off() -> ProblemError:
    """Return the refusal of a request whose body broke off."""
    return ProblemError("BAD_REQUEST", "the connection ended before the body did: send the request again")


def code_of(error: BaseException) -> str:
    """Return the code of an error, of jobledger or of another library."""
    if isinstance(error, ProblemError):
        return error.code
    return next((CODE_OF[kind] for kind in type(error).__mro__ if kind in CODE_OF), "INTERNAL")


def without_files(error: BaseException) -> str:
    """Return the sentence of an error for HTTP, which must not name files of this machine."""
    told = next((_WITHOUT_FILES[kind] for kind in type(error).__mro__ if kind in _WITHOUT_FILES), "")
    if told and isinstance(error, projections.ProjectionBehindError):
        return f"the lists have stream sequence {error.reached} and not yet {error.wanted}: try again in a moment"
    return told or str(error)


def problem_of(
    error: BaseException, request_id: str, *, said: Callable[[str], str] = over_http
) -> tuple[Problem, dict[str, str]]:
    """Return the answer to an error, with headers. The text of an unexpected error may hold secrets, and is left out.

    A sentence that names files of this machine is logged, and answered without them.

    `said` turns a sentence of the ledger, which names commands, into a sentence for the asker.
    """
    code = code_of(error)
    kind = KINDS[code]
    known = code != "INTERNAL" or isinstance(error, ledger.LedgerError | ProblemError)
    told = without_files(error)
    if told != str(error):
        _log.warning("request %s: %s", request_id, error)
    sentence = said(told) if known else f"the gateway failed; its log names the reason under {request_id}"
    own = error if isinstance(error, ProblemError) else None
    headers = dict(own.headers) if own is not None else {}
    if kind.retry:
        headers.setdefault("retry-after", str(_RETRY_AFTER_S))
    problem = Problem(
        type=_TYPES + code.lower().replace("_", "-"),
        title=kind.title,
        status=kind.status,
        detail=sentence,
        code=code,
        request_id=request_id,
        errors=own.errors if own is not None else (),
        extra=own.extra if own is not None else {},
    )
    return problem, headers

"""Problems in a gateway's answers, as the errors that the ledger's own client raises for the same cause."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from jobledger.ledger.model import errors


class GatewayProblem(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a request was refused; see RFC 9457."""

    code: str  #: stable code for programs
    status: int
    detail: str  #: one sentence
    title: str = ""
    request_id: str = ""  #: id of the request in the gateway's log
    extra: dict[str, Any] = {}


#: The error of each code; for other codes the status decides.
_ERRORS: Final[dict[str, type[errors.LedgerError]]] = {
    "AMBIGUOUS_ID": errors.AmbiguousIdError,
    "DUPLICATE": errors.RefusedError,
    "IDEMPOTENCY_KEY_REUSED": errors.RefusedError,
    "ILLEGAL_TRANSITION": errors.IllegalTransitionError,
    "INPUT_MISMATCH": errors.InputMismatchError,
    "JOB_ACCESS_DENIED": errors.AccessDeniedError,
    "JOB_CANCELLED": errors.JobCancelledError,
    "JOB_EXECUTION_ERROR": errors.JobFailedError,
    "JOB_INVALID_INPUT": errors.InvalidInputError,
    "JOB_NOT_FOUND": errors.JobNotFoundError,
    "LEDGER_FULL": errors.LedgerFullError,
    "LEDGER_THROTTLED": errors.LedgerThrottledError,
    "PAYLOAD_GONE": errors.PayloadMissingError,
    "PAYLOAD_TOO_LARGE": errors.PayloadTooLargeError,
    "RESULT_TIMEOUT": errors.ResultTimeoutError,
    "TASK_NOT_FOUND": errors.UnknownTaskError,
    "UNAUTHENTICATED": errors.PermissionRefusedError,
    "UNIQUE_KEY_TAKEN": errors.UniqueKeyTakenError,
}
#: The error by status, for codes that are not known.
_BY_STATUS: Final[dict[int, type[errors.LedgerError]]] = {
    400: errors.InvalidError,
    404: errors.NotFoundError,
    413: errors.PayloadTooLargeError,
    422: errors.InvalidError,
    429: errors.UnreachableError,
    502: errors.UnreachableError,
    503: errors.UnreachableError,
    504: errors.UnreachableError,
}


def error_of(problem: GatewayProblem) -> errors.LedgerError:
    """Return the error to raise: its text is the gateway's sentence, and `problem` says the rest.

    Other attributes of the ledger's own error are missing, since the gateway sends only the sentence.
    """
    nearest = errors.RefusedError if problem.status < 500 else errors.LedgerError  # noqa: PLR2004
    kind = _ERRORS.get(problem.code) or _BY_STATUS.get(problem.status, nearest)
    # Skip the constructors, which build the sentence from parts: here the sentence exists already.
    error = kind.__new__(kind)
    Exception.__init__(error, problem.detail)
    error.problem = problem  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return error


def read_problem(status: int, body: bytes, request_id: str) -> GatewayProblem:
    """Return the problem in an answer; for an answer of another server, such as a proxy, one made from its status."""
    try:
        return msgspec.json.decode(body, type=GatewayProblem)
    except msgspec.MsgspecError:
        sentence = (
            f"the answer has status {status} and does not come from a gateway: look at the proxy before it"
        )
        return GatewayProblem(code="", status=status, detail=sentence, request_id=request_id)

"""The fields of every fact in the ledger, and the further fields of every fact about a job."""

# In modules of events, annotations are values, not text: msgspec would read the text of a base's fields again for each
# event, which took a tenth of the start of a command.

from datetime import UTC, datetime
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec.structs import force_setattr

from jobledger.ledger.model.forms import FORM_FIRST
from jobledger.ledger.model.rights.marks import OTHER_JOB

#: The absence of a JSON value; its identity distinguishes it from a stored `null`; never written.
NO_VALUE: Final = msgspec.Raw(b"")

#: The version of the form of events. This program reads no higher one, whose meaning it cannot know.
VERSION: Final = 1
#: The version of `failed` with `dispatch`: a program that knows only version 1 would believe that the job waits.
VERSION_RETRIED: Final = 2
#: The version of the events of a job with an owner, whose values are sealed; see `seals`.
VERSION_SEALED: Final = 2
#: The largest number in an event: every reader of the ledger, in any language or table, can hold it.
WHOLE_MAX: Final = 2**63 - 1
TIME_MIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MAX: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
#: A whole number of an event, from 0. A signed one may be below 0, such as a sum of durations by a clock that was set
#: back.
Whole = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_MAX)]
#: A count that the fold adds to: the sum, too, must fit into 64 bits.
Counted = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
Signed = Annotated[int, msgspec.Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)]
#: A time of an event: with a zone, which the decoder checks, from `TIME_MIN` to `TIME_MAX`, which the codec checks.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def _version() -> int:
    # A factory, because omit_defaults leaves out plain defaults, and the version is always written.
    return VERSION


class Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """The fields that every event has.

    `gc=False` here and in the records built from events: they hold only plain values, so no cycle can run
    through them, and the collector need not visit millions of them.
    """

    #: The lowest form of a ledger to which events of this type may be appended. Source: ADR 057.
    since_form: ClassVar[int] = FORM_FIRST

    v: Whole = msgspec.field(default_factory=_version)  #: version of the event's form
    at: Moment  #: UTC, microseconds, by the appender's clock; the order of events follows the server's timestamp
    by: str  #: who appended it: `<host>-<pid>-<random>`, or an operator's name
    trace: str = ""  #: W3C traceparent of the caller
    prev: str = msgspec.field(
        default_factory=str
    )  #: sha256 of the chain's previous event as stored, "" for the first


Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")

ErrorKind = Literal[
    "exception",
    "timeout",
    "lost",
    "invalid_input",
    "invalid_result",
    "unknown_task",
    "undeliverable",
    "child_failed",
    "diverged",
    "in_doubt",
]


class PayloadRef(msgspec.Struct, frozen=True, kw_only=True):
    """The place in the object store of a JSON value above the inline limit."""

    sha256: str  #: hex digest of the value's JSON text, and its name in the store
    size_bytes: Whole  #: size of that text


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt failed."""

    kind: ErrorKind  #: the kind of failure
    type: str  #: the exception's class name, or the kind again
    message: str  #: cut at 2,000 characters
    traceback: str = ""  #: the newest frames, cut at 16,000 characters; "" without a traceback
    #: Message and traceback of a job that has an owner, sealed; both are then empty here.
    sealed: str | msgspec.UnsetType = msgspec.UNSET
    #: Only of a sealed error: `file:line function` of its newest frame outside libraries; this is code, not data.
    where: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Replace lone surrogates, as in file names that are not UTF-8: every failure must be recordable."""
        for field in ("type", "message", "traceback"):
            text: str = getattr(self, field)
            if not text.isascii():
                force_setattr(self, field, text.encode("utf-8", "replace").decode("utf-8"))


class Event(Envelope, frozen=True, kw_only=True, gc=False):
    """The envelope of every fact about a job."""

    job: str  #: job id
    queue: str  #: the job's queue
    task: str  #: the name of the function the job runs
    correlation: str = ""  #: the first cause this fact belongs to: a batch, a run, a request
    causation: Annotated[str, OTHER_JOB] = ""  #: the fact or job that led directly to this one
    key: str = (
        ""  #: `<owner>/<number>` of the key that seals the values of the event; "": they are not sealed
    )

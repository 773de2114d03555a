"""Events without their values: what goes, what stays, and that the same value leaves the same behind everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from jobledger.ledger.model.codec import decode, encode
from jobledger.ledger.model.events import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorInfo,
    Event,
    JobEvent,
    Noted,
    Paused,
    PayloadRef,
    Queued,
    SignalRefused,
    StepStarted,
    event_type,
)
from jobledger.ledger.model.redaction import REDACTED, REDACTED_VALUE, redact, redact_key
from jobledger.ledger.model.unique import UNIQUE, Taken

GOLDEN: Final = (Path(__file__).parent / "golden" / "0.1.0.jsonl").read_bytes().splitlines()
EVENTS: Final = [decode(line) for line in GOLDEN]
AT: Final = EVENTS[0].at
WHO: Final[dict[str, Any]] = {"at": AT, "by": "w", "job": "a", "queue": "q", "task": "t"}
#: Fields in which a value may be, wherever they stand; what is left of each is a constant.
VALUES: Final = frozenset({"input", "result", "value", "checkpoint", "items", "note", "text", "metadata", "message", "traceback", "cancel_reason", "pause_reason", "refused"})  # fmt: skip
CONSTANTS: Final = ("", REDACTED, {"redacted": True}, "refused")
_RAW: Final = msgspec.Raw(b'{"name":"ann"}')


def _left(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands in the fields of values."""
    if name in VALUES and name != "metadata":
        yield name, found
    elif isinstance(found, dict):
        for key, value in cast("dict[str, Any]", found).items():
            if key in {"on_end", "origins"}:  # words of the code, and ranges of items
                continue
            yield from _left(value, "note" if name == "metadata" else key)
    elif isinstance(found, list):
        several: list[Any] = found  # pyright: ignore[reportUnknownVariableType]
        for each in several:
            yield from _left(each, name)


@pytest.mark.parametrize("event", EVENTS, ids=event_type)
def test_of_each_event_only_constants_stand_where_values_were(event: JobEvent) -> None:
    after = redact(event)
    assert redact(after) is after, "what was redacted stays as it is"
    assert decode(encode(_as_job_event(after))) == after
    for name in ("type", "v", "at", "by", "prev", "job", "queue", "task", "trace"):
        assert getattr(after, name, None) == getattr(event, name, None)
    if not event.key:
        wrong = [
            each
            for each in _left(msgspec.json.decode(msgspec.json.encode(after)))
            if each[1] not in CONSTANTS
        ]
        own = [each for each in wrong if each[0] == "message"]  # of errors that the ledger itself words
        assert wrong == own
        assert b'_ref":' not in msgspec.json.encode(after)


def _as_job_event(event: Event) -> Any:
    return event


def test_every_type_of_event_is_among_them() -> None:
    assert {event_type(event) for event in EVENTS} >= {
        "queued",
        "failed",
        "carried",
        "signalled",
        "step_started",
        "noted",
    }


ERROR: Final = ErrorInfo(kind="exception", type="ValueError", message="no ann", traceback="File")


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (Queued(**WHO, input=_RAW, metadata={"who": "ann", "why": "x"}), {"input": REDACTED_VALUE, "metadata": {"who": REDACTED, "why": REDACTED}}),
        (Queued(**WHO, input_ref=PayloadRef(sha256="a" * 64, size_bytes=9)), {"input": REDACTED_VALUE, "input_ref": None}),
        (Queued(**WHO, cause="retried", reason="for ann"), {"reason": REDACTED}),
        (Queued(**WHO, tenant="acme", limits=("mail",), unique="ab"), {}),
        (Completed(**WHO, attempt=1, result=msgspec.Raw(b"null")), {"result": REDACTED_VALUE}),
        (Completed(**WHO, attempt=1), {}),
        (Completed(**WHO, attempt=1, result=msgspec.Raw(b'"sealed:YWJj"')), {}),
        (DeadLettered(**WHO, reason="rejected", error=ERROR), {"error": ErrorInfo(kind="exception", type="ValueError", message=REDACTED)}),
        (DeadLettered(**WHO, reason="max_deliver", error=ErrorInfo(kind="lost", type="lost", message="worker w died")), {}),
        (Cancelled(**WHO, reason="its run r1 is paused"), {}),
        (Cancelled(**WHO, reason="asked by ann"), {"reason": REDACTED}),
        (Paused(**WHO, attempt=1, event="operator", reason="ann"), {"reason": REDACTED}),
        (Noted(**WHO, text="ann"), {"text": REDACTED}),
        (SignalRefused(**WHO, attempt=1, step="s", name="n", signal=3), {}),
        (StepStarted(**WHO, attempt=1, step="s", kind="map", target="t", items=msgspec.Raw(b'[{"a":1}]')), {"items": REDACTED_VALUE}),
        (Noted(**WHO, text="sealed:YWJj", key="person:17/1", v=2), {}),
    ],
)  # fmt: skip
def test_what_goes_and_what_stays(event: Event, changed: dict[str, Any]) -> None:
    assert redact(event) == msgspec.structs.replace(event, **changed)
    assert changed or redact(event) is event, "an event without values is not touched"


def test_the_arguments_of_a_unique_key_go() -> None:
    taken = Taken(at=AT, by="w", task="t", key="ab", number=1, queue="q", job="a", arguments=_RAW)
    after = redact_key(taken)
    assert after == msgspec.structs.replace(taken, arguments=REDACTED_VALUE)
    assert redact_key(after) is after
    assert UNIQUE.encode(after)
    bare = msgspec.structs.replace(taken, arguments=msgspec.Raw(b""))
    assert redact_key(bare) is bare

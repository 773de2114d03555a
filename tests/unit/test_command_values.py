"""Commands refuse values that no event could hold, before anything is decided."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.commands import (
    Enqueue,
    Fail,
    Pause,
    ReportProgress,
    Snooze,
)
from jobledger.ledger.model.errors import (
    InvalidInputError,
)
from jobledger.ledger.model.events import (
    ErrorInfo,
    Order,
)
from jobledger.ledger.model.subjects import JobRef

LATER = datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)
REF = JobRef(queue="email", job_id="j1")
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the mistake under test
BEYOND = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))

# Each would store an event that no reader could decode or compare again, or a job that can never run.
INVALID: list[tuple[type[msgspec.Struct], dict[str, object], str]] = [
    (ReportProgress, {"epoch": 2, "done": math.nan}, "done is nan: give a finite number"),
    (ReportProgress, {"epoch": 2, "done": 1, "total": math.inf}, "total is inf: give a finite number"),
    (
        Enqueue,
        {"ref": REF, "task": "t", "order": Order(timeout_s=-math.inf)},
        "timeout_s is -inf: give a finite number",
    ),
    (
        Enqueue,
        {"ref": REF, "task": "t", "order": Order(max_attempts=0)},
        "max_attempts is 0: give at least 1",
    ),
    (Enqueue, {"ref": REF, "task": "t", "run_at": NAIVE}, "run_at has no time zone"),
    (Fail, {"epoch": 2, "error": BOOM, "retry_at": NAIVE}, "retry_at has no time zone"),
    (Snooze, {"epoch": 2, "until": NAIVE}, "until has no time zone"),
    (Pause, {"epoch": 2, "until": NAIVE}, "until has no time zone"),
    (Snooze, {"epoch": 2, "until": BEYOND}, "until 9999-12-31 23:00:00-12:00 lies outside"),
]


@each_row(("kind", "fields", "sentence"), INVALID)
def test_values_no_reader_could_use_are_refused_at_once(
    kind: type[msgspec.Struct], fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kind(**fields)
    assert str(caught.value).startswith(sentence)


def test_moments_are_kept_in_utc() -> None:
    east = timezone(timedelta(hours=2, seconds=13))
    command = Snooze(epoch=2, until=LATER.astimezone(east))
    assert (command.until, command.until.tzinfo) == (LATER, UTC)

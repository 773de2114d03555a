"""The trace of a job whose caller has none."""

from __future__ import annotations

import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.inputs import traceparent_in
from jobledger.ledger.model.trace import is_own, own_trace, trace_id

UUID = "01a201ce-31a8-7284-879d-d9276e0d61c9"
CALLERS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_trace_of_a_job_with_a_uuid_is_its_uuid() -> None:
    trace = own_trace("email", UUID)
    assert trace == "00-01a201ce31a87284879dd9276e0d61c9-879dd9276e0d61c9-02"
    assert (trace_id(trace), is_own(trace)) == (UUID.replace("-", ""), True)


@pytest.mark.parametrize(
    "job_id", ["welcome-7", "0" * 32, "00000000-0000-0000-0000-000000000000", "x" * 64, UUID.upper()]
)
def test_any_other_job_has_one_that_follows_from_its_name(job_id: str) -> None:
    trace = own_trace("email", job_id)
    assert trace == own_trace("email", job_id) != own_trace("reports", job_id)
    version, number, span, flags = trace.split("-")
    assert (version, len(number), len(span), flags) == ("00", 32, 16, "02")
    assert int(number, 16)
    assert int(span, 16)


def test_a_callers_trace_is_not_the_jobs_own() -> None:
    assert (trace_id(CALLERS), is_own(CALLERS)) == ("4bf92f3577b34da6a3ce929d0e0e4736", False)
    assert (trace_id(""), is_own("")) == ("", False)


@each_row(
    ("header", "expected"),
    [
        (CALLERS, CALLERS),
        (f"cc{CALLERS[2:]}", CALLERS),
        (f"cc{CALLERS[2:]}-more-of-later", CALLERS),
        (f"cc{CALLERS[2:]}more", ""),
        (f"{CALLERS}-more", ""),
        (f"ff{CALLERS[2:]}", ""),
        (CALLERS.upper(), ""),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", ""),
        (f"{CALLERS}, {CALLERS}", ""),
        ("00-" + "-" * 52, ""),
        ("x-y-z-" + "0" * 49, ""),
        ("", ""),
    ],
)
def test_a_traceparent_that_is_not_valid_is_ignored(header: str, expected: str) -> None:
    assert traceparent_in(header) == expected

"""Names on the wire: what becomes a subject is checked, and a subject is taken apart only if an event can have it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.tables import each_row

from jobledger.ledger.model.errors import ConfigurationError, InvalidTokenError, MalformedEventError
from jobledger.ledger.model.events import PRIORITIES, Completed, Member, Priority, Queued
from jobledger.ledger.model.subjects import JobRef, Names, ParsedSubject, check_token

ENVELOPE: dict[str, Any] = {"task": "send", "at": datetime(2026, 1, 1, tzinfo=UTC), "by": "w"}
REF = JobRef(queue="email", job_id="j1")
tokens = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)

BAD = [
    "", ".", "a.b", "*", ">", "a b", "a\n", "\n", "a\x00", "é", "\uff11", "a" * 65, "a" * 10_000_000, "\ud800", "a\u200b",
    "a/b", "$JS", None, 7, b"a", ["a"],
]  # fmt: skip


@each_row("value", BAD, ids=lambda value: ascii(value)[:12])
def test_bad_tokens_are_refused_by_a_short_sentence_that_names_the_field(value: object) -> None:
    with pytest.raises(InvalidTokenError) as caught:
        check_token("queue", value)
    assert caught.value.field == "queue"
    assert str(caught.value).startswith("queue ")
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@given(tokens)
def test_good_tokens_come_back(token: str) -> None:
    assert check_token("job id", token) == token


@given(tokens, tokens, st.sampled_from(PRIORITIES), st.one_of(st.just(""), tokens))
def test_subjects_are_parsed_back(queue: str, job_id: str, priority: Priority, environment: str) -> None:
    names = Names(environment.lower())
    queued = Queued(**ENVELOPE, job=job_id, queue=queue, priority=priority)
    completed = Completed(**ENVELOPE, job=job_id, queue=queue, attempt=1)
    assert names.parse(names.event(queued)) == ParsedSubject(
        queue=queue, job_id=job_id, event="queued", priority=priority
    )
    assert names.parse(names.event(completed)) == ParsedSubject(
        queue=queue, job_id=job_id, event="completed", priority=None
    )
    limited = Completed(**ENVELOPE, job=job_id, queue=queue, attempt=1, limited=True)
    assert names.event(limited) == f"{names.event(completed)}.limited"
    assert names.parse(names.event(limited)) == names.parse(names.event(completed))
    child = replace(completed, member=Member(queue="q", job=job_id, step="a/b"))
    assert names.event(child) == f"{names.event(completed)}.child.{job_id}"
    assert names.event(replace(child, limited=True)) == f"{names.event(child)}.limited"
    for each in (child, replace(child, limited=True)):
        assert names.parse(names.event(each)) == names.parse(names.event(completed))
    assert names.event(queued).startswith(names.chain(JobRef(queue=queue, job_id=job_id))[:-1])


@each_row(
    "subject",
    [
        "", "ledger", "ledger.job.q.j", "ledger.job.q.j.queued", "ledger.job.q.j.queued.urgent", "ledger.job.q.j.queued.high.x",
        "ledger.job.q.j.started.high", "ledger.job..j.started", "ledger.job.q.*.started", "ledger.job.q.j.>", "ledger.jobs.q.j.started",
        "a_ledger.job.q.j.started", "ledger.job.q.j .started", "ledger.job.q.j.started\n", "ledger.job.q.j.completed.child",
        "ledger.job.q.j.failed.limited", "ledger.job.q.j.completed.limited.x", "ledger.schedule.q.j.started",
    ],
)  # fmt: skip
def test_what_no_event_can_have_is_not_parsed(subject: str) -> None:
    with pytest.raises(MalformedEventError):
        Names().parse(subject)


def test_an_event_of_a_newer_version_still_has_a_subject() -> None:
    assert Names().parse("ledger.job.q.j.escalated").event == "escalated"


# One line per name: plain, and in an environment.
NAMES: list[tuple[str, str, str]] = [
    ("ledger_root", "ledger", "staging_ledger"),
    ("all_events", "ledger.>", "staging_ledger.>"),
    ("ledger_stream", "LEDGER", "STAGING_LEDGER"),
    ("workers_bucket", "WORKERS", "STAGING_WORKERS"),
    ("tasks_bucket", "TASKS", "STAGING_TASKS"),
    ("payloads_bucket", "PAYLOADS", "STAGING_PAYLOADS"),
    ("results_bucket", "RESULTS", "STAGING_RESULTS"),
    ("tables_bucket", "TABLES", "STAGING_TABLES"),
]


@each_row(("attribute", "plain", "staged"), NAMES)
def test_an_environment_has_names_of_its_own(attribute: str, plain: str, staged: str) -> None:
    assert (getattr(Names(), attribute), getattr(Names("staging"), attribute)) == (plain, staged)


def test_filters_and_consumers() -> None:
    names = Names("e")
    assert names.chain(REF) == "e_ledger.job.email.j1.>"
    assert names.chains_of_id("j1") == "e_ledger.job.*.j1.>"
    assert names.dispatches("email", "high") == "e_ledger.job.email.*.queued.high"
    assert names.consumer("email", "high") == "work_email_high"
    assert names.ended_hint("box") == "e_hint.ended.box"


@given(st.tuples(tokens, st.sampled_from(PRIORITIES)), st.tuples(tokens, st.sampled_from(PRIORITIES)))
def test_no_two_queues_share_a_consumer(one: tuple[str, Priority], other: tuple[str, Priority]) -> None:
    assert (Names().consumer(*one) == Names().consumer(*other)) == (one == other)


def test_an_environment_is_lower_case_since_streams_are_named_after_its_upper_case() -> None:
    with pytest.raises(ConfigurationError, match="lower case, got 'Staging'"):
        Names("Staging")


def test_an_environment_is_a_token() -> None:
    with pytest.raises(InvalidTokenError, match="environment"):
        Names("a.b")

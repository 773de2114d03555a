"""Routes and deliveries as facts: their wire form, what may follow what, and what a check finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.golden import golden_lines
from tests.support.tables import each_row

from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message, digest
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import InvalidError, InvalidInputError
from jobledger.ledger.model.hooks.delivery import (
    DELIVERY,
    ArrivedDelivery,
    Delivery,
    MatchedJob,
    Receive,
    Received,
    Retried,
    Retry,
    job_id,
    named,
    next_number,
)
from jobledger.ledger.model.hooks.delivery import decide as decide_delivery
from jobledger.ledger.model.hooks.delivery import evolve as evolve_delivery
from jobledger.ledger.model.hooks.errors import DeliveryNotFoundError, RouteNotFoundError
from jobledger.ledger.model.hooks.match import RuleInput
from jobledger.ledger.model.hooks.route import (
    ROUTE,
    RULES_MAX,
    Route,
    RouteDefinition,
    RouteEvent,
    RouteRule,
    RouteSet,
    SetRoute,
    check_definition,
    decide,
    evolve,
    headers_kept,
    order_for,
)
from jobledger.ledger.model.hooks.schemes import Scheme
from jobledger.ledger.model.subjects import INNER_TASKS, Names, is_token

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="alice", trace="t")
LINES = [line for line in golden_lines() if line.aggregate in ("route", "delivery")]
OF: dict[str, Aggregate[Any, Any]] = {"route": ROUTE, "delivery": DELIVERY}
PUSH = RouteRule(name="push", task="build", when={"header": "X-GitHub-Event", "is": "push"})
GITHUB = RouteDefinition(scheme="github", secrets=("env:SECRET",), rules=(PUSH,))
ARRIVED = ArrivedDelivery(given="", sha256=digest(b"{}"), size_bytes=2, scheme="github", secret=1)


def stored(of: Aggregate[Any, Any], data: bytes, sequence: int = 9) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject=f"ledger.{of.name}.x.set")


@each_row("line", LINES)
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: Any) -> None:
    of = OF[line.aggregate]
    event = of.decode(stored(of, line.data))
    assert msgspec.json.encode(event) == line.data
    assert of.encode(event) == line.data
    assert of.is_at(of.subject(Names(), event), event)


@each_row("of", [ROUTE, DELIVERY])
def test_every_field_of_every_event_has_a_golden_line(of: Aggregate[Any, Any]) -> None:
    for tag, cls in of.types.items():
        lines = [line.said for line in LINES if line.aggregate == of.name and line.said["type"] == tag]
        assert {name for line in lines for name in line} == {"type", *cls.__struct_fields__}, tag


def route(definition: RouteDefinition | None = GITHUB) -> Route:
    return Route(name="github", definition=definition, at=NOW, by="alice", sequence=7)


def test_a_route_is_as_its_newest_event_says() -> None:
    first = decide("github", None, SetRoute(definition=GITHUB, reason="new"), STAMP)
    assert first is not None
    assert evolve(None, first, 7) == msgspec.structs.replace(route(), reason="new")
    removed = decide("github", route(), Remove(reason="old"), STAMP)
    assert removed is not None
    assert evolve(route(), removed, 8).definition is None
    other = msgspec.structs.replace(GITHUB, tolerance_s=60)
    again = decide("github", evolve(route(), removed, 8), SetRoute(definition=other), STAMP)
    assert isinstance(again, RouteSet)
    assert evolve(None, again, 9).definition == other


def test_what_is_set_already_is_no_event_and_what_is_not_there_cannot_be_removed() -> None:
    assert decide("github", route(), SetRoute(definition=GITHUB), STAMP) is None
    for before in (None, route(None)):
        with pytest.raises(RouteNotFoundError, match="`jobledger routes list` shows"):
            decide("github", before, Remove(), STAMP)


def rule(**changes: Any) -> RouteDefinition:
    return RouteDefinition(
        scheme="github", secrets=("env:S",), rules=(msgspec.structs.replace(PUSH, **changes),)
    )


@each_row(
    "definition, sentence",
    [
        (RouteDefinition(scheme="gitlab", secrets=("env:S",)), "there is no scheme 'gitlab'"),
        (RouteDefinition(scheme="github"), "the route has 0 secrets: give 1 to 8"),
        (RouteDefinition(scheme="github", secrets=("env:S",) * 9), "the route has 9 secrets"),
        (RouteDefinition(scheme="github", secrets=("hunter2",)), "is no reference to a secret"),
        (RouteDefinition(scheme="internal", secrets=("env:S",)), "leave its secrets out"),
        (msgspec.structs.replace(GITHUB, tolerance_s=0), "tolerance_s must be a whole number from 1"),
        (msgspec.structs.replace(GITHUB, tolerance_s=86_401), "to 86,400"),
        (msgspec.structs.replace(GITHUB, body_bytes_max=0), "body_bytes_max must be"),
        (msgspec.structs.replace(GITHUB, body_bytes_max=(16 << 20) + 1), "body_bytes_max must be"),
        (msgspec.structs.replace(GITHUB, keep_bodies_days=367), "keep_bodies_days must be"),
        (msgspec.structs.replace(GITHUB, rules=(PUSH, PUSH)), "two rules are called push"),
        (rule(name="a b"), "rule 'a b' is not valid"),
        (rule(task=""), "rule push: say what it runs: give either task or graph"),
        (rule(graph="g"), "rule push: say what it runs: give either task or graph"),
        (rule(task="", graph="g", queue="q"), "rule push: the nodes of a graph say how their jobs are tried"),
        *((rule(task=name), "is one of the ledger's own") for name in sorted(INNER_TASKS)),
        (rule(value="/x"), "rule push: value and signal_id are those of a signal"),
        (rule(signal_id="/x"), "rule push: value and signal_id are those of a signal"),
        (rule(signal="a b", id="/x"), "rule push: signal 'a b' is not valid"),
        (rule(signal="paid"), "rule push: say which run is sent signal paid"),
        (
            rule(signal="paid", id="/x", task="", graph="g"),
            "rule push: a run of a graph waits for no signals",
        ),
        (
            rule(signal="paid", id="/x", task="", delay_s=1.0),
            "rule push: without a task signal paid begins no run",
        ),
        (rule(signal="paid", id="/x", value={"at": "x"}), "rule push: value: 'x' is no JSON pointer"),
        (rule(signal="paid", id="/x", value={"object": 1}), "rule push: value: input is a JSON object"),
        (rule(signal="paid", id="/x", value={"object": {}, "at": "/x"}), "value: object stands alone"),
        (rule(signal="paid", id="/x", value={"object": {"a": {"header": "Cookie"}}}), "holds a secret"),
        (rule(signal="paid", id="/x", signal_id="x" * 1_000), "rule push: signal_id: the id of signal"),
        (
            msgspec.structs.replace(
                GITHUB,
                rules=tuple(RouteRule(name=f"r{n}", task="t", signal="s", id="/x") for n in range(451)),
            ),
            "the rules may add 902 events",
        ),
        (rule(id="a b"), "rule push: job id 'a b' is not valid"),
        (rule(tenant={"at": "x"}), "rule push: tenant: 'x' is no JSON pointer"),
        (rule(tenant={"header": "Cookie"}), "holds a secret"),
        (rule(run_at="tomorrow"), "rule push: run_at: 'tomorrow' is no time"),
        (rule(run_at="2026-01-31T08:00:00"), "has no time zone"),
        (rule(run_at="/at", delay_s=1.0), "give delay_s or run_at, not both"),
        (rule(metadata={"a=b": "/x"}), "must be without '='"),
        (rule(metadata={str(n): "/x" for n in range(17)}), "metadata has 17 pairs"),
        (rule(limits={"a.b": "/x"}), "'a.b' is not valid"),
        (rule(limits={str(n): "/x" for n in range(9)}), "limits has 9 names"),
        (rule(queue="a.b"), "rule push: queue 'a.b' is not valid"),
        (rule(timeout_s=0.0), "rule push: timeout_s must be above 0"),
        (rule(timeout_s=float("nan")), "rule push: timeout_s is nan"),
        (rule(delay_s=-1.0), "rule push: delay_s must be from 0"),
        (rule(max_attempts=-1), "rule push: max_attempts is -1"),
        (rule(when={"at": "x", "is": 1}), "rule push: 'x' is no JSON pointer"),
        (rule(input={"a": "/~"}), "rule push: input, parameter 'a'"),
        (rule(when={"header": "x-hub-signature-256", "exists": True}), "holds a secret"),
        (rule(input={"a": {"header": "Authorization"}}), "holds a secret"),
        (rule(input={"a": "x" * (256 << 10)}), "bytes: at most 262,144 are kept"),
        (rule(input={"a": float("inf")}), "JSON cannot say"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_a_definition_that_cannot_work_is_refused_and_no_secret_repeated(
    definition: RouteDefinition, sentence: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        SetRoute(definition=definition)
    assert sentence in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_delivery_makes_at_most_900_jobs_because_a_route_has_no_more_rules() -> None:
    rules = tuple(RouteRule(name=f"r{number}", task="t") for number in range(RULES_MAX + 1))
    check_definition(RouteDefinition(scheme="internal", rules=rules[1:]))
    with pytest.raises(InvalidInputError, match="the route has 901 rules: at most 900"):
        check_definition(RouteDefinition(scheme="internal", rules=rules))


def test_only_headers_that_rules_look_at_are_kept_and_never_one_of_a_secret() -> None:
    own = Scheme(header="X-Key", algorithm="token")
    looks = RouteRule(
        name="a", task="t", when={"header": "X-Kind", "exists": True}, input={"b": {"header": "X-B"}}
    )
    forged = RouteRule(name="b", task="t", when={"header": "X-Key", "exists": True})
    definition = RouteDefinition(scheme=own, secrets=("env:S",), rules=(looks, forged))
    assert headers_kept(definition) == {"content-type", "x-kind", "x-b"}


def received(**changes: Any) -> Received:
    command = Receive(arrived=ARRIVED, definition=7, matched=())
    event = decide_delivery("github", "d1", None, command, STAMP)
    assert isinstance(event, Received)
    return msgspec.structs.replace(event, **changes)


def delivery(**changes: Any) -> Delivery:
    return evolve_delivery(None, received(**changes), 9)


def test_a_delivery_is_received_once_whenever_it_comes_again() -> None:
    late = Stamp(at=NOW + timedelta(days=365), by="gw")
    command = Receive(arrived=ARRIVED, definition=8, matched=())
    assert decide_delivery("github", "d1", delivery(), command, late) is None


def test_the_same_body_counts_as_another_delivery_after_a_while_where_it_has_no_id() -> None:
    command = Receive(arrived=ARRIVED, definition=8, matched=(), again_after_s=300)
    before = Stamp(at=NOW + timedelta(seconds=299.9), by="gw")
    assert decide_delivery("github", "d1", delivery(), command, before) is None
    after = Stamp(at=NOW + timedelta(seconds=300), by="gw")
    event = decide_delivery("github", "d1", delivery(), command, after)
    assert isinstance(event, Received)
    assert event.number == 2
    clock_back = Stamp(at=NOW - timedelta(seconds=5), by="gw")
    assert decide_delivery("github", "d1", delivery(), command, clock_back) is None


def test_processed_again_it_says_what_came_in_and_who_wanted_it() -> None:
    matched = [MatchedJob(rule="push", queue="q", job=job_id("github", "d1", "push", 2))]
    command = Retry(definition=12, matched=matched, reason="mended")
    event = decide_delivery("github", "d1", delivery(), command, STAMP)
    assert isinstance(event, Retried)
    assert (event.number, event.definition, event.matched) == (2, 12, tuple(matched))
    assert (event.sha256, event.secret, event.by) == (ARRIVED.sha256, 1, "alice")
    assert next_number(evolve_delivery(None, event, 10)) == 3
    with pytest.raises(DeliveryNotFoundError, match="`jobledger routes deliveries github` shows"):
        decide_delivery("github", "d1", None, command, STAMP)


@given(st.text(min_size=1, max_size=300))
def test_whatever_a_provider_calls_a_delivery_is_a_word_of_a_subject(given_id: str) -> None:
    name, kept = named(given_id)
    assert is_token(name)
    assert (kept == "") == (name == given_id)
    assert given_id.startswith(kept)
    assert is_token(job_id("r" * 64, name, "x" * 64, 10**6))


def test_ids_of_jobs_differ_by_route_delivery_rule_and_number_and_never_change() -> None:
    assert job_id("github", "d1", "push", 1) == "w-mQ3fBp_QfZjVYxpCaaoB1jSGS8FViXUSZFDM4N1TtQo"
    found = {
        job_id(*words, number)
        for words in (("a", "b", "c"), ("a", "c", "b"), ("a-b", "c", "c"), ("a", "b-c", "c"))
        for number in (1, 2, 11)
    }
    assert len(found) == 12
    assert job_id("a", "b", "c", 3) == job_id("a", "b", "c", 1) + "-r2"


def broken(of: Aggregate[Any, Any], before: Any, event: Envelope) -> list[str]:
    assert of.check is not None
    return [sentence for _, sentence in of.check(before, event, 9)]


@each_row(
    "of, before, event, sentence",
    [
        (ROUTE, None, RouteSet(at=NOW, by="a", route="github", definition=GITHUB), ""),
        (DELIVERY, None, received(), ""),
        (DELIVERY, delivery(), received(number=2), ""),
        (DELIVERY, None, received(number=2), "number 2 and does not follow on 0"),
        (DELIVERY, delivery(), received(), "number 1 and does not follow on 1"),
        (
            DELIVERY,
            None,
            received(matched=(MatchedJob(rule="push", queue="q", job="mine"),)),
            "has not the id",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_check_finds_what_could_not_have_been_decided(
    of: Aggregate[Any, Any], before: Any, event: Any, sentence: str
) -> None:
    found = broken(of, before, event)
    assert (not found) if not sentence else any(sentence in each for each in found)


def test_a_check_finds_a_retry_of_other_bytes_and_a_route_that_could_not_be_set() -> None:
    again = decide_delivery("github", "d1", delivery(), Retry(definition=7, matched=()), STAMP)
    assert isinstance(again, Retried)
    assert broken(DELIVERY, delivery(), again) == []
    other = msgspec.structs.replace(again, sha256=digest(b"x"))
    assert broken(DELIVERY, delivery(), other) == ["`retried` is about other bytes than the delivery had"]
    forged: RouteEvent = RouteSet(
        at=NOW, by="a", route="r", definition=RouteDefinition(scheme="github", secrets=("hunter2",))
    )
    assert "is no reference to a secret" in broken(ROUTE, None, forged)[0]
    removed = decide("github", route(), Remove(), STAMP)
    assert removed is not None
    assert "was not there" in broken(ROUTE, None, removed)[0]


ORDERED = RouteRule(
    name="paid",
    task="t",
    id="/order",
    tenant={"at": "/account"},
    run_at={"header": "X-Start"},
    metadata={"region": "/region", "kind": {"value": "web"}},
    limits={"crm": "/account", "all": ""},
)


@each_row(
    "body, headers, expected",
    [
        (
            {"order": 77, "account": "acme", "region": "eu"},
            {"x-start": "2026-01-31T08:00:00+01:00"},
            {
                "id": "77",
                "tenant": "acme",
                "run_at": datetime(2026, 1, 31, 7, tzinfo=UTC),
                "metadata": {"region": "eu", "kind": "web"},
                "limits": ("crm:acme", "all"),
            },
        ),
        ({}, {}, {"metadata": {"kind": "web"}, "limits": ("crm", "all")}),
        (
            {"order": "a b", "account": "a b", "region": ["eu"]},
            {"x-start": "soon"},
            {"metadata": {"kind": "web"}, "limits": ("crm", "all")},
        ),
        ({"order": True, "account": None}, {}, {"metadata": {"kind": "web"}, "limits": ("crm", "all")}),
    ],
)
def test_what_a_delivery_says_of_an_order_is_taken_where_it_fits(
    body: Any, headers: dict[str, str], expected: dict[str, Any]
) -> None:
    check_definition(RouteDefinition(scheme="internal", rules=(ORDERED,)))
    assert order_for(ORDERED, RuleInput(headers, body)) == expected
    assert "x-start" in headers_kept(RouteDefinition(scheme="internal", rules=(ORDERED,)))


def test_events_are_told_in_a_few_words() -> None:
    told = [
        OF[line.aggregate].words(OF[line.aggregate].decode(stored(OF[line.aggregate], line.data)))
        for line in LINES
    ]
    assert told == [
        "emitted, 13 bytes, no rule holds",
        "github, 13 bytes, 2 jobs",
        "own, 13 bytes, no rule holds",
        "emitted, 13 bytes, no rule holds",
        "github, 13 bytes, 1 job: the rule was wrong",
        "github, 13 bytes, 1 job",
        "emitted, 13 bytes, 1 signal, 1 signal not sent",
        "github, 1 rule",
        "own, 2 rules: another secret",
        "own, 0 rules",
        "",
        "moved away",
        "internal, 2 rules",
        "internal, 2 rules",
        "internal, 1 rule",
    ]

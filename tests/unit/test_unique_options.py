"""What can be said of unique jobs, and the names that follow from it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import ConfigurationError, Unique, task
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.unique.keys import Wish, wish_for

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@task
async def send(user: int, tags: set[str] | None = None) -> None: ...


@task(name="a_task_whose_name_has_many_characters")
async def long(user: int) -> None: ...


@each_row(
    ("given", "sentence"),
    [
        ({"args": "user"}, "args must be a tuple of names, such as args=(\"user\",), got 'user'"),
        ({"args": ["user"]}, "args must be a tuple"),
        ({"args": ("user", "user")}, "args must be a tuple"),
        ({"args": (1,)}, "args must be a tuple"),
        ({"until": "completed"}, "until must be 'started' or 'ended', got 'completed'"),
        ({"on_conflict": "ignore"}, "on_conflict must be 'return' or 'reject' or 'replace', got 'ignore'"),
        ({"for_s": 60, "until": "ended"}, "give Unique for_s or until, not both"),
        ({"sliding": True}, "needs for_s"),
        ({"for_s": 0}, "for_s must be at least 1 s"),
        ({"for_s": float("nan")}, "for_s must be a number of seconds"),
        ({"for_s": True}, "for_s must be a number of seconds"),
        ({"for_s": 60, "on_conflict": "replace"}, "cannot replace a job"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Unique(**given)
    assert sentence in str(refused.value)


@each_row(
    ("given", "sentence"),
    [
        ({"unique": "user"}, "unique must be a Unique(...), got 'user'"),
        ({"unique": Unique(for_s=60), "id": "a"}, "give id or Unique(for_s=...), not both"),
        ({"max_wait_s": 60}, "max_wait_s needs debounce_s"),
        ({"debounce_s": "5"}, "debounce_s must be a number of seconds"),
        ({"debounce_s": -1}, "debounce_s must be a number of seconds"),
        ({"debounce_s": 5, "max_wait_s": 4}, "max_wait_s must be at least debounce_s (5), got 4"),
        ({"debounce_s": 5, "delay_s": 4}, "give debounce_s, or delay_s or run_at"),
        ({"debounce_s": 5, "run_at": NOW}, "give debounce_s, or delay_s or run_at"),
        (
            {"debounce_s": 5, "unique": Unique(until="ended")},
            "give Unique nothing but args beside debounce_s",
        ),
        ({"debounce_s": 5, "unique": Unique(for_s=60)}, "give Unique nothing but args beside debounce_s"),
        ({"debounce_s": 5, "unique": Unique(on_conflict="reject")}, "give Unique nothing but args"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        send.options(**given)
    assert sentence in str(refused.value)


def wish(of: Any, rule: Unique, *, now: datetime = NOW, tenant: str = "", **values: Any) -> Wish:
    text = of.signature.encode((), values)
    ref = JobRef(queue="q", job_id="j")
    command = Enqueue(ref=ref, task=of.name, order=Order(input=msgspec.Raw(text), tenant=tenant))
    return wish_for(of.signature, rule, command, text, now=now)


def test_equal_values_make_equal_keys_in_whatever_order_they_come() -> None:
    first = wish(send, Unique(), user=7, tags={"a", "b", "c"}).key
    assert wish(send, Unique(), tags=["c", "b", "a"], user=7).key == first
    assert wish(send, Unique(), user=7).key != first
    assert wish(send, Unique(), user=7, tags={"a", "b", "c"}, tenant="acme").key != first
    assert (
        wish(send, Unique(args=("user",)), user=7).key
        == wish(send, Unique(args=("user",)), user=7, tags=["x"]).key
    )


def test_a_period_gives_an_id_that_is_a_token() -> None:
    rule = Unique(args=("user",), for_s=60)
    first = wish(send, rule, user=7).command
    assert first.ref.job_id == f"send-{wish(send, rule, user=7).key.key}"
    assert first.order.unique == ""
    assert wish(send, rule, user=7, now=NOW.replace(second=59)).command.ref == first.ref
    assert wish(send, rule, user=7, now=NOW.replace(minute=5, second=0)).command.ref != first.ref
    assert wish(send, Unique(args=("user",), for_s=61), user=7).command.ref != first.ref
    cut = check_token("job id", wish(long, rule, user=7).command.ref.job_id)
    assert (cut[0], len(cut)) == ("u", 41)


def test_arguments_that_are_large_are_not_repeated_in_the_key() -> None:
    assert wish(send, Unique(), user=7, tags=["x"]).arguments == msgspec.Raw(b'{"tags":["x"],"user":7}')
    assert bytes(wish(send, Unique(), user=7, tags=["x" * 1024]).arguments) == b""

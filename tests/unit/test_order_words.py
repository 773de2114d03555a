"""What an enqueuer says of a job beside its input: tenant, correlation, metadata and limits, checked with one sentence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import task
from jobledger.ledger.children import Children, Parent
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InvalidError, InvalidInputError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.subjects import JobRef


@task(queue="email", limits=("global",))
def send(number: int) -> None:
    """Do nothing with a number."""


def test_a_job_gets_what_its_enqueuer_says_in_one_order() -> None:
    chosen = send.options(
        tenant="acme",
        correlation="run-7",
        metadata={"region": "eu", "b": "Ä b"},
        limits=("tenant:acme", "api", "tenant:acme"),
    ).chosen
    assert (chosen.tenant, chosen.correlation) == ("acme", "run-7")
    assert list(chosen.metadata.items()) == [("b", "Ä b"), ("region", "eu")]
    assert chosen.limits == (
        "api",
        "global",
        "tenant:acme",
    )  # the task's too: nobody leaves them out by mistake
    assert send.defaults.limits == send.options(tenant="acme").chosen.limits == ("global",)


PRINTABLE = "must be 1 to 128 printable characters without spaces, got "
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tenant": "a b"}, f"tenant {PRINTABLE}'a b'"),
    ({"tenant": 7}, f"tenant {PRINTABLE}one of type int"),
    ({"tenant": "x" * 129}, f"tenant {PRINTABLE}'{'x' * 60}'"),
    ({"tenant": "a\x1b[31m"}, f"tenant {PRINTABLE}'a\\x1b[31m'"),
    ({"correlation": "\n"}, f"correlation {PRINTABLE}'\\n'"),
    ({"correlation": 0}, f"correlation {PRINTABLE}one of type int"),
    ({"metadata": ["region"]}, "metadata must be a dict of texts, got one of type list"),
    ({"metadata": []}, "metadata must be a dict of texts, got one of type list"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata has 17 pairs: give at most 16"),
    ({"metadata": {"": "x"}}, "a key of metadata must be 1 to 64 printable characters without spaces, got ''"),
    ({"metadata": {7: "x"}}, "a key of metadata must be 1 to 64 printable characters without spaces, got one of type int"),
    ({"metadata": {"k" * 65: "x"}}, f"a key of metadata must be 1 to 64 printable characters without spaces, got '{'k' * 60}'"),
    ({"metadata": {"a=b": "x"}}, "a key of metadata must be without '=', got 'a=b'"),
    ({"metadata": {"n": 7}}, "metadata 'n' must be a text of at most 256 characters, got one of type int"),
    ({"metadata": {"n": "x" * 257}}, "metadata 'n' must be a text of at most 256 characters, got 257 characters"),
    ({"limits": "global"}, "limits must be several names, such as (\"global\", \"tenant:acme\"), got 'global'"),
    ({"limits": 7}, 'limits must be several names, such as ("global", "tenant:acme"), got one of type int'),
    ({"limits": {"global": 1}}, 'limits must be several names, such as ("global", "tenant:acme"), got one of type dict'),
    ({"limits": tuple("abcdefghi")}, "limits has 9 names: a job may have at most 8"),
    ({"limits": tuple("abcdefgh")}, "limits has 9 names: a job may have at most 8"),  # with the task's own
    ({"limits": ("a.b",)}, "name of a limit 'a.b' is not valid: use 1 to 64 characters out of A-Z a-z 0-9 _ and -"),
    ({"limits": (":acme",)}, "name of a limit '' is not valid: use 1 to 64 characters out of A-Z a-z 0-9 _ and -"),
    ({"limits": (7,)}, "name of a limit 7 is not valid: use 1 to 64 characters out of A-Z a-z 0-9 _ and -"),
    ({"limits": ("tenant:",)}, f"key of limit tenant {PRINTABLE}''"),
    ({"limits": ("tenant:a b",)}, f"key of limit tenant {PRINTABLE}'a b'"),
    ({"limits": ("queue:email",)}, "limit 'queue:email' has a name that the ledger itself uses (queue, task, schedule, webhooks-out): choose another"),
]  # fmt: skip


@each_row(("given", "sentence"), REFUSED)
def test_what_cannot_be_recorded_or_compared_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidError) as caught:
        send.options(**given)
    assert str(caught.value) == sentence


REF = JobRef(queue="email", job_id="j1")


def test_an_order_that_no_option_made_is_held_to_the_same() -> None:
    """As that of a schedule; what is written without being read back must be of the right types."""
    limits: Any = ["b:2", "a", "queue:email", "a"]
    made = Enqueue(ref=REF, task="send", order=Order(limits=limits, metadata={"b": "1", "a": "2"}))
    assert made.order == Order(limits=("a", "b:2", "queue:email"), metadata={"a": "2", "b": "1"})
    wrong: list[Any] = [{"tenant": 7}, {"fair": "a b"}, {"metadata": {"a": 1}}, {"limits": (1,)}]
    for fields in wrong:
        with pytest.raises(InvalidError):
            Enqueue(ref=REF, task="send", order=Order(**fields))


def test_a_child_inherits_tenant_and_correlation_and_may_name_its_own() -> None:
    children = Children(Parent(job_id="p", worker="w", tenant="acme", correlation="run-7"))
    said = Order(tenant="other", correlation="c", metadata={"a": "b"}, limits=("global",))
    inherited = children.inherit(Order(max_attempts=3))
    assert inherited == Order(max_attempts=3, tenant="acme", correlation="run-7")
    assert children.inherit(said) == said
    alone = Children(Parent(job_id="p", worker="w")).inherit(Order())
    assert (alone.tenant, alone.correlation) == ("", "p")


def test_a_plain_order_is_left_as_it_is() -> None:
    order = Order(max_attempts=2)
    assert Enqueue(ref=REF, task="send", order=order).order is order
    assert msgspec.json.encode(order) == b'{"max_attempts":2}'


def test_what_is_no_collection_of_names_is_refused_where_a_task_is_defined() -> None:
    limits: Any = None
    with pytest.raises(InvalidInputError, match="limits must be several names"):
        task(limits=limits)(lambda: None)

"""The same id with another input: an error that names the job, in each way to enqueue, and nothing is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import InputMismatchError, Unique, task
from jobledger.ledger.additions.comparison import equal_json
from jobledger.ledger.children import Parent
from jobledger.ledger.graphs.graph import Graph
from jobledger.ledger.named.verbs import NamedJob
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio


@task(queue="bills")
async def charge(invoice: str, cents: float = 0, tags: frozenset[str] = frozenset(), more: Any = None) -> str:
    return invoice


@task(queue="bills")
async def refund(invoice: str) -> str:
    return invoice


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(charge, refund)


async def test_equal_inputs_are_one_however_they_are_written(ledger: MemoryLedger) -> None:
    await ledger.enqueue(
        charge.options(id="a"), invoice="i-1", cents=1, tags=frozenset("x"), more={"b": 1, "a": 2}
    )
    equal = (
        b'{"invoice": "i-1", "cents": 1.0, "tags": ["x"], "more": {"a": 2.0, "b": 1}}',
        b'{"more":{"a":2,"b":1},"tags":["x"],"cents":1,"invoice":"i-1"}',
    )
    for text in equal:
        assert not (await ledger.enqueue_named("charge", text, id="a")).created
    await ledger.enqueue_named("charge", b'{"invoice":"i-2"}', id="b")
    assert not (await ledger.enqueue(charge.options(id="b"), "i-2", 0.0, frozenset(), None)).created
    head = (await ledger.log.head()).last_sequence
    other = (
        (b'{"invoice": "i-2"}', ["cents", "invoice", "more", "tags"]),
        (b'{"invoice":"i-1","cents":1,"tags":["x"],"more":{"b":true,"a":2}}', ["more"]),
        (b'{"invoice":"i-1","cents":1,"tags":["x"],"more":{"b":1}}', ["more"]),
    )
    for text, differing in other:
        with pytest.raises(InputMismatchError) as caught:
            await ledger.enqueue_named("charge", text, id="a")
        assert (caught.value.job_id, caught.value.queue) == ("a", "bills")
        assert caught.value.differing == differing
    assert (await ledger.log.head()).last_sequence == head


async def test_a_set_is_one_in_any_order_to_code_that_says_it_is_a_set(ledger: MemoryLedger) -> None:
    await ledger.enqueue_named("charge", b'{"invoice":"i-1","tags":["y","x","y"]}', id="a")
    assert not (await ledger.enqueue(charge.options(id="a"), "i-1", tags=frozenset("xy"))).created
    with pytest.raises(InputMismatchError, match=r"\(tags\)"):
        await ledger.enqueue(charge.options(id="a"), "i-1", tags=frozenset("x"))


async def test_the_sentence_says_which_job_stays_and_what_to_do(ledger: MemoryLedger) -> None:
    await ledger.enqueue(charge.options(id="a"), "i-1")
    with pytest.raises(InputMismatchError) as caught:
        await ledger.enqueue(charge.options(id="a"), "i-2")
    assert str(caught.value) == (
        "job a in queue bills exists with another input (invoice) and stays as it is: give the new job another id, "
        'or on_other_input="keep" to get the job that exists'
    )
    with pytest.raises(InputMismatchError, match="job a in queue bills exists for another task and stays"):
        await ledger.enqueue(refund.options(id="a"), "i-1")
    kept = await ledger.enqueue(charge.options(id="a", on_other_input="keep"), "i-2")
    assert (kept.id, kept.created) == ("a", False)
    assert msgspec.json.decode((await kept.snapshot()).order.input) == {"invoice": "i-1"}


@pytest.mark.parametrize("size", [10, 200_000], ids=["inline", "stored apart"])
async def test_each_way_to_enqueue_refuses_and_can_be_told_to_keep(ledger: MemoryLedger, size: int) -> None:
    one, other = "a" * size, "b" * size
    own = ledger.on_behalf_of(Parent(job_id="p", worker="w"))

    def ways(how: dict[str, Any]) -> dict[str, Callable[[], Awaitable[Any]]]:
        chosen = charge.options(**how)
        return {
            "enqueue": lambda: ledger.enqueue(charge.options(id="x", **how), other),
            "enqueue in a job": lambda: own.enqueue(charge.options(id="x", **how), other),
            "enqueue_named": lambda: ledger.enqueue_named("charge", {"invoice": other}, id="x", **how),
            "enqueue_many": lambda: ledger.enqueue_many(chosen, [{"invoice": other}], ids=lambda _: "x"),
            "enqueue_named_many": lambda: ledger.enqueue_named_many(
                [NamedJob(task="charge", id="x", input=msgspec.Raw(msgspec.json.encode({"invoice": other})), **how)]
            ),
            "batch": lambda: ledger.enqueue_many(chosen, [{"invoice": other}], batch="lot"),
        }  # fmt: skip

    await ledger.enqueue(charge.options(id="x"), one)
    await ledger.enqueue_many(charge, [{"invoice": one}], batch="lot")
    for enqueue in ways({}).values():
        with pytest.raises(InputMismatchError, match=r"exists with another input \(invoice\)"):
            await enqueue()
    for enqueue in ways({"on_other_input": "keep"}).values():
        await enqueue()
    assert (await (await ledger.job("x")).snapshot()).order.max_attempts == 5


async def test_many_add_all_others_and_name_each_that_differs(ledger: MemoryLedger) -> None:
    def inputs(changed: set[int]) -> list[dict[str, Any]]:
        return [{"invoice": f"i-{n}", "cents": -1 if n in changed else n} for n in range(500)]

    def name(values: Any) -> str:
        return f"charge-{values['invoice']}"

    await ledger.enqueue_many(charge, inputs(set())[:300], ids=name)
    with pytest.raises(InputMismatchError) as caught:
        await ledger.enqueue_many(charge, inputs({17, 40, 299, 400}), ids=name)
    error = caught.value
    assert [(each.number, each.job_id) for each in (error, *error.others)] == [
        (17, "charge-i-17"),
        (40, "charge-i-40"),
        (299, "charge-i-299"),
    ]
    assert str(error).startswith("input 17: job charge-i-17 in queue bills exists with another input (cents)")
    assert str(error).endswith("and so do 2 other inputs (enqueued beside them: 200; there already: 297)")
    done = await ledger.enqueue_many(charge.options(on_other_input="keep"), inputs({17}), ids=name)
    assert (done.created, done.existing) == (0, 500)


async def test_a_unique_job_is_compared_by_its_id_alone(ledger: MemoryLedger) -> None:
    unique = Unique(args=("invoice",))
    first = await ledger.enqueue(charge.options(unique=unique), "i-1", 1)
    assert (await ledger.enqueue(charge.options(unique=unique), "i-1", 2)).id == first.id
    await ledger.enqueue(charge.options(unique=unique, id="mine"), "i-2", 1)
    with pytest.raises(InputMismatchError):
        await ledger.enqueue(charge.options(unique=unique, id="mine"), "i-2", 2)


async def test_a_graph_of_the_same_id_is_the_same_graph(ledger: MemoryLedger) -> None:
    def graph(invoice: str) -> Graph:
        made = Graph("pay")
        made.add(charge.options(priority="low"), invoice)
        return made

    await ledger.run_graph(graph("i-1"), id="g")
    assert not (await ledger.run_graph(graph("i-1"), id="g")).created
    with pytest.raises(
        InputMismatchError, match=r"job g in queue jobledger exists with another input \(graph\)"
    ):
        await ledger.run_graph(graph("i-2"), id="g")


@each_row(
    "one, other, equal",
    [
        ("1", "1.0", True),
        ("1e2", "100", True),
        ("0", "-0.0", True),
        ('{"a":1,"b":[2]}', '{ "b": [2.0], "a": 1 }', True),
        ("[" * 90 + "]" * 90, "[" * 90 + "]" * 90, True),
        ("1", "true", False),
        ("0", "false", False),
        ('"1"', "1", False),
        ("null", "0", False),
        ('{"a":null}', "{}", False),
        ("[1,2]", "[2,1]", False),
        ("[1]", "[1,1]", False),
        ("9007199254740993", "9007199254740992", False),
    ],
)
def test_numbers_are_equal_by_value_and_truth_is_no_number(one: str, other: str, equal: bool) -> None:
    assert equal_json(msgspec.json.decode(one), msgspec.json.decode(other)) is equal

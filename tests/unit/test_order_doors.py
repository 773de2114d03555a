"""Every plain field of a job's order is offered at every door, unless a reason here says why not.

A plain field is one that whoever enqueues a job gives as it is. A new field of `Order` fails here until it is one of them
or is named in `MADE`, and until each door has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
from tests.support.program import PROGRAM
from tests.support.tables import each_row

from jobledger.admin.objects.jobs import JobShown
from jobledger.admin.verbs.schedules import DeclareSchedule
from jobledger.admin.views import job_details
from jobledger.cli import options as shared_options
from jobledger.cli.jobs import options as of_job
from jobledger.gateway.api.batches import BatchEnd
from jobledger.gateway.api.enqueue import NewJob
from jobledger.gateway.api.lists import EnqueuerFilter
from jobledger.gateway.api.stored_graphs import NewRun
from jobledger.gateway.client import calls, graph_calls
from jobledger.gateway.client.models import JobSnapshot
from jobledger.ledger import Limit, Queue, Unique, task
from jobledger.ledger.graphs import verbs as graphs
from jobledger.ledger.graphs.named import NamedNode
from jobledger.ledger.job_orders import command_of, plain_command
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InvalidError
from jobledger.ledger.model.events import LABELS, Order
from jobledger.ledger.model.hooks.route import RouteRule
from jobledger.ledger.model.runs.orders import Callback, ChildNode, ChildOrder
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.named.verbs import NamedJob, NamedOptions
from jobledger.ledger.options import ORDER_FIELDS, Options
from jobledger.ledger.runs.ends import RunEnd
from jobledger.ledger.runs.nodes import callbacks_of, node_of
from jobledger.ledger.runs.run import Run
from jobledger.ledger.runs.workflow import workflow
from jobledger.ledger.tasks import TaskOptions
from jobledger.projections import JobRow, SaidFilter
from jobledger.projections.search import KEYS
from jobledger.projections.tables import job_schema as schema
from jobledger.projections.tables import job_values as values
from jobledger.testing import MemoryLedger

#: Fields of an order that nobody gives as they are, and who makes them.
MADE: Final = {
    "input": "the argument of every door",
    "input_ref": "the enqueuer, of a large input",
    "notify": "the client that waits for the end",
    "batch": "the batch that the job is added to",
    "tick": "the schedule that makes the job",
    "trace": "the span that the caller is in",
    "fair": "the queue of the task, of the input",
    "unique": "the rule of the task, of the input",
    "version": "the code of the workflow",
    "member": "the run that makes the job",
    "rerun_of": "the run that begins again",
    "on_end": "the code of the workflow",
    "deadline_s": "the code of the workflow",
    "inherits": "the run above",
    "key": "the enqueuer, of the owner",
}
PLAIN: Final = tuple(name for name in Order.__struct_fields__ if name not in MADE)
WORD: Final = "x-7"
#: A value of each field that is no word.
VALUES: Final[dict[str, Any]] = dict.fromkeys(PLAIN, WORD) | {
    "priority": "high",
    "max_attempts": 7,
    "timeout_s": 30.0,
    "limits": ("api", "db:x"),
    "metadata": {"region": "eu"},
}

_OF_NODES: Final[dict[str, str]] = dict.fromkeys(
    ("priority", "max_attempts", "timeout_s", "limits"), "the nodes of the graph say how they are tried"
)
_OF_RUN: Final[dict[str, str]] = dict.fromkeys(
    ("tenant", "correlation", "metadata"), "jobs of a run have its own, or none"
)
#: By the name of a door: the fields that it has, and the plain fields that it does not have, each with the reason.
DOORS: Final[dict[str, tuple[Collection[str], dict[str, str]]]] = {
    "@task": (
        inspect.signature(task).parameters,
        dict.fromkeys(("correlation", "metadata"), "code does not know to what its jobs belong"),
    ),
    "Task.options": (TaskOptions.__annotations__, {}),
    "enqueue_named": (NamedOptions.__annotations__, {}),
    "enqueue_named_many": (NamedJob.__struct_fields__, {}),
    "graphs.run": (graphs.RunOptions.__annotations__, _OF_NODES),
    "remote enqueue": (calls.JobOptions.__annotations__, {}),
    "remote run_stored_graph": (graph_calls.RunOptions.__annotations__, _OF_NODES),
    "POST /v1/jobs": (NewJob.__struct_fields__, {}),
    "POST /v1/graphs/{name}/run": (NewRun.__struct_fields__, _OF_NODES),
    "POST /v1/graphs, nodes": (NamedNode.__struct_fields__, _OF_RUN),
    "PUT /v1/batches/{name}, on_end": (BatchEnd.__struct_fields__, _OF_RUN),
    "PUT /v1/schedules/{name}": (DeclareSchedule.__struct_fields__, {}),
    "rule of a route": (RouteRule.__struct_fields__, {"correlation": "it is the delivery"}),
    "jobledger enqueue": ([each.name for each in PROGRAM.commands["enqueue"].params], {}),
    "jobledger schedules add": (
        [each.name for each in PROGRAM.commands["schedules"].commands["add"].params],
        {},
    ),
    "jobledger graphs run": (
        [each.name for each in PROGRAM.commands["graphs"].commands["run"].params],
        _OF_NODES,
    ),
    "callback of a workflow": (Callback.__struct_fields__, {}),
    "node of a graph": (ChildNode.__struct_fields__, _OF_RUN),
    "group of children": (
        ChildOrder.__struct_fields__,
        {name: why for name, why in _OF_RUN.items() if name != "tenant"},
    ),
    "jobs show --json": (JobShown.__struct_fields__, {}),
    "jobs list --json": (JobRow.__struct_fields__, {}),
    "table jobs": (schema.JOBS.columns, {}),
    "remote snapshot": (JobSnapshot.__struct_fields__, {"timeout_s": "a snapshot tells how the job goes"}),
}


@task(name="send", queue="email")
async def send(number: int = 1) -> None: ...


@task(name="told")
async def told(end: RunEnd) -> None: ...


@workflow(name="book", on_fail=told.options(**VALUES))
async def book(run: Run) -> None: ...


def test_each_field_is_plain_or_made_by_somebody() -> None:
    assert set(ORDER_FIELDS) == set(PLAIN)
    assert MADE.keys() <= set(Order.__struct_fields__)


@pytest.mark.parametrize("door", DOORS)
def test_each_door_offers_each_plain_field(door: str) -> None:
    offered, reasons = DOORS[door]
    assert {name for name in PLAIN if name not in offered} == reasons.keys()


def said(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in PLAIN}


@pytest.mark.anyio
async def test_what_a_job_is_given_in_python_is_in_its_first_event() -> None:
    ledger = MemoryLedger(send)
    for made in (
        await ledger.enqueue(send.options(**VALUES)),
        await ledger.enqueue_named("send", **VALUES),
    ):
        assert said((await made.snapshot()).order) == VALUES
    done = await ledger.enqueue_named_many([NamedJob(task="send", id="many", **VALUES)])
    assert done.created == 1
    assert said((await (await ledger.job("many")).snapshot()).order) == VALUES
    schedule = await ledger.schedules.add("nightly", send.options(**VALUES), on_demand=True)
    assert said(schedule.definition.order) == VALUES


#: A value of each option that is not as by default.
OTHER: Final[dict[str, Any]] = VALUES | {
    "queue": "mail",
    "id": "one",
    "id_template": "{tenant}",
    "delay_s": 5.0,
    "run_at": datetime(2030, 1, 1, tzinfo=UTC),
    "declared": (Limit("db", key="tenant"),),
    "declared_queue": Queue("default", limits=("db",)),
    "tenant_template": "{tenant}",
    "owner": "person:17",
    "unique": Unique(),
    "debounce_s": 5.0,
    "max_wait_s": 60.0,
    "on_other_input": "keep",
    "name": "step",
    "by": "ann",
    "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
#: What an option cannot be without.
NEEDS: Final = {"max_wait_s": ("debounce_s", "unique"), "debounce_s": ("unique",)}


@each_row("name", Options.__struct_fields__)
def test_a_job_that_needs_nothing_more_is_ordered_as_any_other(name: str) -> None:
    """`Enqueuer` has a quicker way for it than `command_of`; a new option that only this one heeds fails here."""
    ledger = MemoryLedger(send)
    options = Options(**{each: OTHER[each] for each in (name, *NEEDS.get(name, ()))})
    assert getattr(options, name) != getattr(Options(), name)
    if ledger._enqueuer._is_plain(send, options):
        quick = plain_command(send, options, "j", b'{"number": 7}', "inbox")
        assert quick == command_of(send, options, "j", b'{"number": 7}', ledger.clock, notify="inbox")
    else:
        assert name in {
            "owner", "tenant_template", "limits", "declared", "declared_queue", "delay_s", "run_at", "debounce_s",
            "max_wait_s",
        }  # fmt: skip


def test_what_the_remote_client_sends_is_a_whole_order() -> None:
    named: Any = {**VALUES, "limits": list(VALUES["limits"])}
    for sent in (
        calls.order_of(send.options(**VALUES), None, {}, {}),
        calls.order_of("send", None, {}, named),
    ):
        read = msgspec.json.decode(calls.encode(sent), type=NewJob)
        assert {name: getattr(read, name) for name in PLAIN} == VALUES


def test_a_schedule_that_is_declared_by_hand_has_the_whole_order() -> None:
    wish = DeclareSchedule(name="nightly", task="send", on_demand=True, **VALUES)
    assert {name: wish.chosen[name] for name in PLAIN} == VALUES


def test_what_is_typed_is_the_whole_order() -> None:
    words = {"limits": ["api", "db:x"], "metadata": ["region=eu"]}
    typed = {name: words.get(name, VALUES.get(name)) for name in of_job.ORDER}
    assert {name: of_job.chosen(typed)[name] for name in PLAIN} == VALUES


def test_a_callback_and_a_child_get_what_their_code_says() -> None:
    (callback,) = callbacks_of(book, "")
    assert said(copied(Order, callback)) == VALUES
    node = node_of(send, send.options(**VALUES).chosen)
    group = copied(ChildOrder, node)
    for each in (node, group, group.node(0)):
        assert {name: getattr(each, name) for name in PLAIN if name not in _OF_RUN} == {
            name: value for name, value in VALUES.items() if name not in _OF_RUN
        }


@pytest.mark.anyio
async def test_a_job_is_shown_with_its_whole_order() -> None:
    ledger = MemoryLedger(send)
    made = await ledger.enqueue(send.options(**VALUES))
    job = await made.snapshot()
    shown = await job_details(ledger, job, await made.history())
    assert {name: getattr(shown, name) for name in PLAIN} == VALUES
    row = dict(
        zip(
            schema.INSERTED,
            (*values.job_changing(job, b"", 0), job.id, job.queue, *values.job_fixed(job, 0)),
            strict=True,
        )
    )
    texts = {"limits": "api db:x", "metadata": '{"region":"eu"}'}
    assert {name: row[name] for name in PLAIN} == VALUES | texts


@each_row("label", LABELS)
def test_a_label_is_a_word_wherever_it_comes_from(label: str) -> None:
    ref = JobRef(queue="email", job_id="x")
    for given in ("a b", "x" * 129):
        fields: dict[str, Any] = {label: given}
        with pytest.raises(InvalidError, match=f"^{label} must be 1 to 128 printable characters"):
            Options(**fields)
        with pytest.raises(InvalidError, match=f"^{label} must be 1 to 128 printable characters"):
            Enqueue(ref=ref, task="send", order=Order(**fields))


def test_each_condition_on_what_was_said_is_an_option_a_parameter_and_a_key_of_searches() -> None:
    fields = set(SaidFilter.__struct_fields__)
    assert set(shared_options.SAID) == fields
    assert fields <= set(EnqueuerFilter.__struct_fields__)
    assert {each.said for each in KEYS.values() if each.said} | {"metadata"} == fields
    listed = {each.name for each in PROGRAM.commands["jobs"].commands["list"].params}
    assert fields <= listed


def test_what_a_remote_caller_leaves_out_as_none_is_not_sent() -> None:
    queue: Any = {"queue": None}
    opened = graph_calls.open_call("b", send.options(queue="x"), queue, None).body
    assert opened is not None
    assert msgspec.json.decode(opened) == {"task": "send", "queue": "x"}
    begun = graph_calls.run_call("g", None, {"tenant": None}).body
    assert begun is not None
    assert b"tenant" not in begun

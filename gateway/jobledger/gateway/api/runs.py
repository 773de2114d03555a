"""Runs: jobs whose task records steps. Their steps, child jobs, signals, reruns, workflows and tables."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from jobledger.admin import run_acts
from jobledger.admin.objects.jobs import GraphShown, StepsShown, graph_shown, steps_shown
from jobledger.admin.rows import AnswerPosition
from jobledger.admin.runs import Tree, recorded, run_tree
from jobledger.admin.tables.first_rows import FirstRows
from jobledger.admin.workflows.versions import WorkflowVersion
from jobledger.audit.verify.links import check_history
from jobledger.gateway.api.one_job import PROBLEMS, read_job
from jobledger.gateway.api.pagination import READ, looking
from jobledger.gateway.api.parameters import Limit, Look, Past, WithReason, aware
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.gateway.table_rows import rows_of
from jobledger.gateway.visibility import terms_for, tree_for, workflows_for
from jobledger.ledger.model.commands import STEP_KEY_MAX
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.runs.orders import RerunOf
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.opened_jobs import opened_history
from jobledger.ledger.reruns.plans import RerunRequest
from jobledger.projections.tables.run_tables import TableRow, list_tables

ROWS_MAX: Final = 100
_TREE_NODES: Final = ("ARCHIVED", "PROJECTION_BEHIND", "BUSY", "JOB_NOT_FOUND")
_Key = Annotated[str, msgspec.Meta(max_length=STEP_KEY_MAX)]


class StepsQuery(Past, frozen=True, kw_only=True):
    """The moment to show, and whether to include values of the steps."""

    results: bool = False  #: include inputs and results of the steps; needs `payloads`


class SignalQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a signal."""

    id: _Key = ""  #: name of this signal: sent twice, it counts once


class SignalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A run after it was sent a signal."""

    id: str
    queue: str
    status: str
    signal: str
    signal_id: str
    is_new: bool  #: False: a signal of this id was sent before, and nothing was changed


class NewRerun(WithReason, frozen=True, kw_only=True, rename={"from_step": "from"}):
    """The options of a rerun."""

    from_step: _Key | None = None  #: key of the first step to execute; the steps before it are copied
    failed: bool = False  #: instead of `from_step`: copy all completed steps and children, execute the others
    at: datetime | None = None  #: begin from the run as of this moment by the server's clock
    input: dict[str, Any] | None = None  #: the whole new input; left out: the run's input
    id: str | None = None  #: id of the new job; the same id twice makes one job
    plan: bool = False  #: show what would be copied, and change nothing


class StepSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was recorded."""

    step: str
    sequence: int  #: stream sequence of the event that records the step


class ChildrenSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose children run again, except completed ones."""

    step: str
    children: int  #: completed children, which are copied


class RerunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A run that begins again, or would."""

    id: str | None  #: id of the new job; null: it was only planned
    queue: str
    created: bool  #: False: it was only planned, or existed before
    rerun_of: RerunOf | None
    copied: list[StepSaid]  #: in a plan: the steps that would be copied
    children_copied: list[ChildrenSaid] = []  #: in a plan: the steps whose completed children would be copied
    again: list[str]  #: in a plan: keys of the recorded steps that would be executed again


class WorkflowsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of workflows that workers have or runs need."""

    items: list[WorkflowVersion]


class TablesQuery(Look, frozen=True, kw_only=True):
    """A filter of tables."""

    queue: str | None = None  #: queue of the run
    run: str | None = None  #: whole id of the run
    limit: Limit = 50


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables that runs made, the newest first."""

    items: list[TableRow]
    position: AnswerPosition


class RowsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choice of a table, and the number of its rows."""

    table: _Key = (
        ""  #: the key of its step, or its name if only one table has it; left out: the run's only table
    )
    limit: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = 20


async def list_steps(asked: ApiRequest, queue: str, id: str, *, query: StepsQuery) -> Answer:  # noqa: A002 - as in the address
    """List the steps of a run and the signals it was sent, read from its chain and so never stale.

    `results=true` adds the input and the result of each step, as far as the ledger has them; a value above the inline
    limit is shown as its reference. That needs the permission `payloads`.
    """
    held = await read_job(asked, queue, id, query, "payloads" if query.results else "view")
    check = await check_history(asked.gateway.ledger.log, held.history)
    history = held.history
    if query.results:
        history = await opened_history(asked.gateway.ledger.keys, history, values=True)
    shown = steps_shown(recorded(history), check, results=query.results)
    return Answer(value=shown, etag=str(held.job.last_sequence))


async def show_graph_of_run(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Answer:  # noqa: A002
    """Show the steps of a run, and their order."""
    held = await read_job(asked, queue, id, query)
    check = await check_history(asked.gateway.ledger.log, held.history)
    return Answer(value=graph_shown(held.job, check), etag=str(held.job.last_sequence))


async def show_tree(asked: ApiRequest, queue: str, id: str, *, query: Look) -> Tree:  # noqa: A002
    """Show a job, its steps, and all the jobs below it."""
    asked.principal.require("view", check_token("queue", queue))
    check_token("job id", id)
    async with looking(asked, query) as (view, _):
        tree = run_tree(view.store, id, queue)
    asked.principal.require_about("view", tree.queue, tree.task, JobNotFoundError(id))
    return tree_for(asked.principal, tree)


async def send_signal(
    asked: ApiRequest,
    queue: str,
    id: str,  # noqa: A002
    name: str,
    *,
    query: SignalQuery,
    body: msgspec.Raw,
) -> Answer:
    """Send a run a signal, which is kept until the run waits for it; the body is the signal's value.

    It must fit the type that workers announced for signals of that name.
    """
    await read_job(asked, queue, id, permission="queue")
    told = await run_acts.signal(
        asked.gateway.rows,
        id,
        name,
        bytes(body),
        signal_id=query.id,
        queue=queue,
        by=asked.principal.name,
    )
    value = SignalAnswer(
        id=told.job.id,
        queue=told.job.queue,
        status=told.job.state.value,
        signal=name,
        signal_id=query.id,
        is_new=told.is_new,
    )
    return Answer(value=value, status=202 if told.is_new else 200)


async def rerun_job(asked: ApiRequest, queue: str, id: str, *, body: NewRerun) -> Answer:  # noqa: A002
    """Begin a run again as a new job that copies the steps before one, or all completed ones; the run stays as it is.

    Another input needs the permission `queue` as well.
    """
    permission: Permission = "view" if body.plan else "review"
    held = await read_job(asked, queue, id, permission=permission)
    by, reason = asked.principal.name, body.reason
    how: RerunRequest = {"from_step": body.from_step, "failed": body.failed}
    how |= {"at": aware("at", body.at), "id": body.id, "by": by, "reason": reason}
    if body.input is not None:
        asked.principal.require("queue", held.job.queue, held.job.task)
        how["input"] = body.input
    rows = asked.gateway.rows
    if body.plan:
        plan = await run_acts.rerun_planned(rows, id, queue, **how)
        value = RerunAnswer(
            id=None,
            queue=held.job.queue,
            created=False,
            rerun_of=plan.rerun_of,
            copied=[StepSaid(step=step.key, sequence=step.sequence) for step in plan.copied],
            children_copied=[
                ChildrenSaid(step=each.step.key, children=each.children) for each in plan.groups
            ],
            again=[step.key for step in plan.again],
        )
        return Answer(value=value, status=200)
    made = await run_acts.rerun(rows, id, queue, **how)
    source = (await made.snapshot()).order.rerun_of
    value = RerunAnswer(
        id=made.id, queue=made.queue, created=made.created, rerun_of=source, copied=[], again=[]
    )
    location = {"location": f"/v1/jobs/{made.queue}/{made.id}"}
    return Answer(value=value, status=202 if made.created else 200, headers=location)


async def list_all_workflows(asked: ApiRequest) -> WorkflowsShown:
    """List the versions of workflows that living workers have, and those that open runs need."""
    return WorkflowsShown(items=await workflows_for(asked.principal, asked.gateway.rows))


async def list_run_tables(asked: ApiRequest, *, query: TablesQuery) -> Tables:
    """List the tables that runs made: rows, size, and until when the rows are kept."""
    async with looking(asked, query) as (view, place):
        select, seen = view.store.select, terms_for(asked.principal)
        found = list_tables(select, job_id=query.run, queue=query.queue, limit=query.limit, visible_to=seen)
        return Tables(items=list(found), position=place)


async def show_rows(asked: ApiRequest, queue: str, id: str, *, query: RowsQuery) -> FirstRows:  # noqa: A002
    """Show the first rows of a table that a run made.

    The gateway fetches the file, and refuses one above 16 MiB (`jobledger tables export` copies such a file). Values
    without a form in JSON are text: times, decimals, bytes (base64).
    """
    held = await read_job(asked, queue, id, permission="payloads")
    return await rows_of(asked.gateway, held.job, query.table, query.limit)


_RUN: Final = "/v1/jobs/{queue}/{id}"


_endpoint: Final = endpoint_maker("runs", permission="view", problems=PROBLEMS)

_SIGNAL: Final = {
    "permission": "queue",
    "query": SignalQuery,
    "body": msgspec.Raw,
    "status": 202,
    "also": (200,),
    "problems": (
        *PROBLEMS,
        "REFUSED",
        "JOB_INVALID_INPUT",
        "PAYLOAD_TOO_LARGE",
        "LEDGER_FULL",
        "LEDGER_BUSY",
    ),
}
_RERUN: Final = {
    "permission": "view",
    "body": NewRerun,
    "status": 202,
    "also": (200,),
    "problems": (*PROBLEMS, "REFUSED", "JOB_INVALID_INPUT", "PAYLOAD_TOO_LARGE", "LEDGER_FULL"),
}
_TREE: Final = {"query": Look, "problems": _TREE_NODES}

_ROWS: Final = {
    "permission": "payloads",
    "query": RowsQuery,
    "problems": (
        *PROBLEMS,
        "NOT_FOUND",
        "PAYLOAD_GONE",
        "PAYLOAD_TOO_LARGE",
        "REFUSED",
        "NO_TABLES",
    ),
}

_READ: Final = {"query": Past, "heeds": ("If-None-Match",)}
_STEPS: Final = {**_READ, "query": StepsQuery}
ENDPOINTS: Final = (
    _endpoint("GET", f"{_RUN}/steps", list_steps, "List the steps of a run", StepsShown, **_STEPS),
    _endpoint(
        "GET", f"{_RUN}/graph", show_graph_of_run, "Show the steps of a run as a graph", GraphShown, **_READ
    ),
    _endpoint("GET", f"{_RUN}/tree", show_tree, "Show a run and all the jobs below it", Tree, **_TREE),
    _endpoint(
        "GET", f"{_RUN}/rows", show_rows, "Show the first rows of a table of a run", FirstRows, **_ROWS
    ),
    _endpoint(
        "POST", f"{_RUN}/signals/{{name}}", send_signal, "Send a run a signal", SignalAnswer, **_SIGNAL
    ),
    _endpoint(
        "POST",
        f"{_RUN}/rerun",
        rerun_job,
        "Begin a run again from a step, or what failed of it",
        RerunAnswer,
        **_RERUN,
    ),
    _endpoint(
        "GET",
        "/v1/workflows",
        list_all_workflows,
        "List the versions of workflows",
        WorkflowsShown,
        problems=("PROJECTION_BEHIND",),
    ),
    _endpoint(
        "GET",
        "/v1/tables",
        list_run_tables,
        "List the tables that runs made",
        Tables,
        query=TablesQuery,
        problems=READ,
    ),
)

"""What a job page shows of a run: its steps, what came after what, the jobs below it, the signals it can be sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from jobledger.admin.rows import View
from jobledger.admin.run_graph import graph_of, levels
from jobledger.admin.runs import StepShown, Tree, recorded, run_tree, step_shown
from jobledger.gateway.pages.charts.graph import Box, graph
from jobledger.gateway.pages.schema_fields import Field, value_fields
from jobledger.gateway.pages.words import state_word, style_of
from jobledger.gateway.scoped import tree_for
from jobledger.ledger.adding.announced import AnnouncedTask
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import NotFoundError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.runs.awaiting import awaited_of
from jobledger.ledger.reruns.mending import beginnings, may_mend
from jobledger.ledger.signalling.giving import takes_signals
from jobledger.projections.tables.steps import SignalRow

_STEPS_MAX = 300


class SignalForm(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that can be sent by filling fields."""

    name: str
    fields: tuple[Field, ...] | None  #: None: JSON has to be typed


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a job page."""

    steps: list[StepShown]  #: the newest, in their order; with their values for who may see these
    steps_more: int
    signals: list[SignalRow]
    graph: Markup
    hidden: int  #: nodes that the graph leaves out
    tree: Tree | None  #: None: it has no children, or the lists do not know it yet
    takes_signals: bool  #: whether it can be sent one
    awaited: list[SignalForm]  #: the signals that it waits for
    known: list[str]  #: names of the signals that its workflow waits for at any time
    begins: list[str]  #: keys of the newest steps that a rerun can begin with
    may_mend: bool  #: whether a rerun can begin with all that completed


def run_part(
    job: Job, seen: Sequence[StoredEvent], view: View, principal: Principal, workflow: AnnouncedTask | None
) -> RunPart | None:
    """Return what a job recorded as a run, as far as somebody may see it; None where it recorded nothing.

    `workflow`: as workers announced it, for the fields of its signals.
    """
    if not job.steps and not job.signals:
        return None
    run, drawn = recorded(seen), graph_of(job)
    may_see = principal.may("payloads", job.queue, job.task)
    rows = [
        [Box(id=node.id, label=node.label, style=style_of(node.status), state=node.status) for node in row]
        for row in levels(drawn)
    ]
    return RunPart(
        steps=[step_shown(run, row, values=may_see) for row in run.steps[-_STEPS_MAX:]],
        steps_more=max(0, len(run.steps) - _STEPS_MAX),
        signals=run.signals[-_STEPS_MAX:],
        graph=graph(rows, drawn.edges, label=f"Steps of the run, which is {state_word(job.state.value)}"),
        hidden=drawn.hidden,
        tree=_tree(job, view, principal)
        if any(step.order is not None for step in job.steps.values())
        else None,
        takes_signals=takes_signals(job),
        awaited=_signals(job, workflow),
        known=[] if workflow is None else sorted(workflow.signals),
        begins=beginnings(job, held={stored.stream_sequence for stored in seen})[-_STEPS_MAX:],
        may_mend=may_mend(job),
    )


def _tree(job: Job, view: View, principal: Principal) -> Tree | None:
    try:
        return tree_for(principal, run_tree(view.store, job.id, job.queue))
    except NotFoundError:  # the rows are behind the chain
        return None


def _signals(job: Job, workflow: AnnouncedTask | None) -> list[SignalForm]:
    steps = (job.steps[key] for key in job.awaited if key in job.steps)
    names = dict.fromkeys(step.target for step in steps if awaited_of(step) == "signal")
    return [SignalForm(name=name, fields=signal_fields(workflow, name)) for name in names]


def signal_fields(workflow: AnnouncedTask | None, name: str) -> tuple[Field, ...] | None:
    """Return the fields of a signal's form; None where workers announced nothing of it."""
    signal = None if workflow is None else workflow.signals.get(name)
    return None if signal is None else value_fields(signal.schema)

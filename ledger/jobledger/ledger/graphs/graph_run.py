"""`run_graph` and `run_stored_graph`: the built-in workflows whose nodes are jobs. They need no code of the application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobledger.ledger.graphs.stored import owner_of_run
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.graphs.stored import for_run
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.runs.orders import BUILT_IN_ATTEMPTS, BUILT_IN_QUEUE
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.seals import owner_of
from jobledger.ledger.runs.errors import ChildFailedError, StepFailedError
from jobledger.ledger.runs.groups import failure_of, record_failure, record_results
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.runs.passage import Passage, StepRequest
from jobledger.ledger.runs.run import Run
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.steps import digest_of
from jobledger.ledger.runs.workflow import workflow


@workflow(
    name="run_graph",
    queue=BUILT_IN_QUEUE,
    max_attempts=BUILT_IN_ATTEMPTS,
    give_up_on=(ChildFailedError, StepFailedError, InvalidInputError),
)
async def run_graph(run: Run, graph: GraphSpec) -> dict[str, Any]:
    """Run the nodes of a graph, each once those that it waits for have ended; return their results by their labels.

    Raises: ChildFailedError for the first node that failed, once no other one can run; StepFailedError where the
        results are more than a run may read at once.
    """
    graph.check()
    passage = run._passage  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it does what a method of a run does
    nodes = _Nodes(passage, graph, graph.name)
    with passage.enter(graph.name) as branch:
        return await nodes.run(branch)


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which stored graph a run is of, as its first step records it."""

    graph: str  #: its name
    version: int
    sequence: int  #: stream sequence of the event that says it
    spec: GraphSpec


@workflow(
    name="run_stored_graph",
    queue=BUILT_IN_QUEUE,
    max_attempts=BUILT_IN_ATTEMPTS,
    give_up_on=(ChildFailedError, StepFailedError, InvalidInputError, GraphNotFoundError),
)
async def run_stored_graph(run: Run, graph: str, input: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: A002, B006
    """Run the nodes of a stored graph, in its newest version when the run begins; return their results by their names.

    Raises: as `run_graph`; GraphNotFoundError; InvalidInputError for an input that lacks what the graph takes of it.
    """
    passage = run._passage  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as `run_graph`
    with passage.enter("version") as branch:
        stored = await _version(passage, branch, graph)
    spec = for_run(stored.spec, input)
    key = passage.journal.key
    own, wanted = "" if key is None else owner_of(key.id), owner_of_run(stored.spec, input)
    if wanted not in {"", own}:  # a client saw another version, or knew of no owners
        raise InvalidInputError(
            f"graph {graph} version {stored.version} has the owner {wanted}, and its run has {own or 'none'}: begin it again"
        )
    nodes = _Nodes(passage, spec, f"{graph} version {stored.version}")
    with passage.enter(graph) as branch:
        return await nodes.run(branch)


async def _version(passage: Passage, branch: Branch, name: str) -> Version:
    """Return the version that the run is of: the newest one when it came here first. Raises: GraphNotFoundError."""
    asked = await passage.ask(branch.key("version"), "value", name)
    known = asked.known
    if known is None:
        found = await passage.journal.stored_graph(name)
        assert found.spec is not None, "a graph that was removed is not found"
        said = Version(graph=name, version=found.version, sequence=found.sequence, spec=found.spec)
        await passage.complete(asked, encode_value(said, what=f"version of graph {name}"))
        known = passage.journal.job.steps[asked.key]
    return msgspec.json.decode(await passage.result_of(known), type=Version)


class _Nodes:
    """The children of one graph: asked for, made, waited for, and their results recorded as those of the step."""

    def __init__(self, passage: Passage, graph: GraphSpec, target: str) -> None:
        """`target`: what the step is called beside the graph's name."""
        self._passage = passage
        self._graph = graph
        self._target = target

    async def run(self, branch: Branch) -> dict[str, Any]:
        """Return the results by their nodes' labels. Raises: ChildFailedError."""
        passage, graph = self._passage, self._graph
        digest = digest_of(msgspec.to_builtins(graph))
        asked = await passage.ask(branch.key(graph.name), "graph", self._target, digest)
        await self._begin(asked)
        step = passage.journal.job.steps[asked.key]
        if not step.has_ended:
            await self._end(asked, await passage.waits.until_over(asked.key))
            step = passage.journal.job.steps[asked.key]
        if step.state == "failed":
            raise failure_of(passage, step)
        found: dict[str, Any] = msgspec.json.decode(await passage.result_of(step))
        return found

    async def _begin(self, asked: StepRequest) -> None:
        """Ask for the nodes, and make those that may exist."""
        passage, journal = self._passage, self._passage.journal
        if asked.known is None:
            what = f"inputs of graph {self._graph.name}"
            order = msgspec.structs.replace(self._graph.order, tenant=journal.job.order.tenant)
            if journal.key is None:
                items, reference = await journal.put(self._graph.items, what=what)
            else:
                texts = msgspec.json.decode(self._graph.items, type=list[msgspec.Raw])
                items, reference = await journal.put_items([bytes(each) for each in texts], what=what)
            await passage.start(asked, order=order, items=items, items_ref=reference)
            await journal.open(asked.key, again=False)
        elif not asked.known.has_ended:
            await journal.open(asked.key, again=True)

    async def _end(self, asked: StepRequest, step: Step) -> None:
        """Record what the nodes came to."""
        passage = self._passage
        labels = [node.label for node in self._graph.nodes]
        if step.failed:
            await record_failure(passage, asked, step, lambda item: f"node {labels[item]}: ")
            return

        def by_label(ends: Sequence[MemberEnd]) -> bytes:
            return msgspec.json.encode({label: end.result for label, end in zip(labels, ends, strict=True)})

        await record_results(passage, asked, by_label)

"""`Graph`: jobs that wait for each other and pass results on, all of them known before the first one runs.

It becomes the input of one job, a run of the built-in workflow `run_graph`, whose only step is a group of children.
"""

from __future__ import annotations

import functools
import graphlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, ParamSpec, cast

import msgspec

from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.graphs.graph_run import run_graph
from jobledger.ledger.limits.declarations import Limit
from jobledger.ledger.limits.keys import KeySource, with_limits
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import InputMismatchError, InvalidInputError, TaskDefinitionError
from jobledger.ledger.model.graphs.parameters import WORD, check_parameters
from jobledger.ledger.model.graphs.spec import GraphNode, GraphSpec
from jobledger.ledger.model.runs.orders import ITEMS_MAX, ChildNode, OnDeadLetter, Take, check_on_dead_letter
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.options import Options, refuse_of_maker
from jobledger.ledger.outcome import Wish
from jobledger.ledger.protocols import Client
from jobledger.ledger.runs.nodes import node_of
from jobledger.ledger.tasks import Result, Task, TaskWithOptions
from jobledger.ledger.templates import owner_but

P = ParamSpec("P")

_SHOWN_MAX: Final = 12  # nodes of a cycle


class NodeResult:
    """Stands for the result of a node that has not run; typed as that result, so that it fits where it is taken.

    It can be passed to other nodes, by itself or within lists, tuples and dicts, and to `after`; nothing else.
    """

    __slots__ = ("_graph", "_label", "_place")

    def __init__(self, graph: Graph, label: str, place: int) -> None:
        self._graph = graph
        self._label = label
        self._place = place

    def __repr__(self) -> str:
        """Show whose result it stands for."""
        return f"<result of node {self._label}>"

    def place_in(self, graph: Graph) -> int | None:
        """Return which node of a graph it stands for; None where that is a node of another one."""
        return self._place if self._graph is graph else None

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"the result of node {self._label} is not there before the graph runs: pass it to another node as it is"
        )

    __bool__ = __iter__ = __len__ = __getitem__ = __eq__ = __lt__ = __add__ = __call__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse to look into it."""
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


class _AddedNode(msgspec.Struct, eq=False):
    """A node as it was added."""

    label: str
    node: ChildNode
    input: dict[str, Any]
    after: set[int]
    always: bool
    owner: str  #: whose data its task says that the job holds, as in `GraphNode`; "": it says nothing
    tells: str  #: a limit whose key is a value of the input, which would stand in the clear; "": none does


def _limit_of_input(options: Options) -> str:
    """Return the name of a limit whose key is a value that an owner's key seals, "" without one."""
    found = (each for each in options.limits_in_code if isinstance(each, Limit))
    return next((each.name for each in found if each.key not in (None, "tenant")), "")


class Nodes:
    """Adds nodes that wait for some others; made by `Graph.after`."""

    def __init__(self, graph: Graph, after: Sequence[int], *, always: bool) -> None:
        self._graph = graph
        self._after = after
        self._always = always

    def add(
        self,
        task: Task[P, Result | Wish] | TaskWithOptions[P, Result | Wish],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Add a node; see `Graph.add`."""
        add = self._graph._add  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - its other half
        return cast("Result", add(task, args, kwargs, self._after, always=self._always))


class Graph:
    """Jobs that wait for each other: nodes are added, and a result that is passed to another node is waited for.

    `limit`: how many nodes may be open at the same time; 0: all that are ready. `on_failure` says what happens when a node
    has failed: with `stop` no other node begins but those that run always; with `continue` only the nodes that wait for the
    failed one are left out. In both cases the graph's job ends as a dead letter that names the node.

    `on_dead_letter` says when a node has failed if its job became a dead letter: with `fail` at once; with `wait` when
    a person discards it, since the graph goes on if a person requeues it.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int = 0,
        on_failure: Literal["stop", "continue"] = "stop",
        on_dead_letter: OnDeadLetter = "wait",
    ) -> None:
        """Raises: InvalidTokenError, InvalidInputError."""
        self.name = check_token("graph", name)
        if not 0 <= limit <= ITEMS_MAX:
            raise InvalidInputError(f"limit of graph {name} must be 0 or more, got {limit!r}")
        if on_failure not in ("stop", "continue"):
            raise InvalidInputError(
                f"on_failure of graph {name} must be stop or continue, got {on_failure!r}"
            )
        check_on_dead_letter(on_dead_letter, f"graph {name}")
        self.limit = limit
        self.on_dead_letter: OnDeadLetter = on_dead_letter
        self.on_failure: Literal["stop", "continue"] = on_failure
        #: Options that have limits, with their task, and those of its code that it only names.
        self.declared: list[tuple[Options, str, tuple[str, ...]]] = []
        self.takes_input = (
            False  #: whether a node takes values of its run's input, which only a stored graph's runs have
        )
        self._nodes: list[_AddedNode] = []
        self._labels: set[str] = set()
        self._counts: Counter[str] = Counter()  #: of nodes, by their tasks

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self._nodes)

    def add(
        self,
        task: Task[P, Result | Wish] | TaskWithOptions[P, Result | Wish],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Add a job of a task as a node, and return what stands for its result.

        An argument may be the result of another node, or hold some: the node waits for them, and gets what they returned.

        Raises: InvalidInputError for arguments that the task does not take; TaskDefinitionError for a task whose limits
            have a key that only a result would give, and for options that say when a job runs or what it is called.
        """
        return cast("Result", self._add(task, args, kwargs, (), always=False))

    def after(self, *nodes: object, always: bool = False) -> Nodes:
        """Return what adds nodes that wait for these as well, without taking their results.

        `always`: they run once these have ended, even by failure; use it to clean up after a failed node.

        Raises: InvalidInputError for what is no node of this graph.
        """
        return Nodes(self, [self._place(node) for node in nodes], always=always)

    @staticmethod
    def input(pointer: str = "", *, default: Any = msgspec.UNSET) -> Any:
        """Return what stands for a value of the input that each run of a stored graph is given, by its JSON pointer.

        `Graph.input("/customer/name", default="")`; without a pointer for all of the input. Without a default the input
        must have the value. It can be an argument of a node, or lie within one.
        """
        return {WORD: pointer} if default is msgspec.UNSET else {WORD: pointer, "default": default}

    def edge(self, first: object, then: object) -> None:
        """Let one node wait for another, both added before.

        Raises: InvalidInputError, with the path, if each would wait for the other in the end.
        """
        place, waiting = self._place(first), self._place(then)
        path = self._path(place, waiting)
        if path:
            raise self._cycle((*path, path[0]))
        self._nodes[waiting].after.add(place)

    def add_node(
        self,
        label: str,
        task: Kind,
        options: Options,
        given: Mapping[str, Any],
        *,
        takes: Sequence[Take] = (),
        after: Iterable[int] = (),
        always: bool = False,
    ) -> None:
        """Add a node whose task may be known by its name alone.

        `label`: its name in the graph, which no other node has. `given`: the arguments by name, None where a result
        goes; `takes` says which result that is. `takes` and `after` name nodes by their places in the order in which they
        are added, also nodes that are added later.

        Raises: as `add`.
        """
        # Its owner is that of its graph, which `spec` compares.
        refuse_of_maker(
            msgspec.structs.replace(options, owner=""), f"a node of task {task.name}", "its graph"
        )
        if label in self._labels:
            raise InvalidInputError(
                f"two nodes of graph {self.name} are called {label!r}: give each a name of its own"
            )
        of_run = {name for name, value in given.items() if check_parameters(value)}
        late = {str(take.at[0]) for take in takes} | of_run
        known = task.signature.check_known(given, late)
        node = node_of(task, options, limits=self._limits(task, options, known, late), takes=tuple(takes))
        owner = self._owner(task, options, known, {str(take.at[0]) for take in takes}, of_run)
        tells = _limit_of_input(options)
        self.takes_input = self.takes_input or bool(of_run)
        self._labels.add(label)
        self._counts[task.name] += 1
        waits_for = {take.of for take in takes} | set(after)
        self._nodes.append(_AddedNode(label, node, known, waits_for, always, owner, tells))

    def spec(self, *, owner: str = "", stored: bool = False) -> GraphSpec:
        """Return the graph as it is stored; `owner`: whose data its run holds, "": nobody's.

        `stored`: under a name; then its nodes name their owners, and each run has that of its nodes.

        Raises: InvalidInputError for one without nodes, with too many, in which nodes wait for each other, whose nodes
            have another owner, or with an owner a limit by a value that is sealed.
        """
        for each in self._nodes:
            if each.owner and not stored and each.owner != owner:
                raise InvalidInputError(
                    f"node {each.label!r} of graph {self.name} has the owner {each.owner}, and the graph has "
                    f"{owner or 'none'}: begin it with that owner"
                )
            of = each.owner if stored else owner
            if of and each.tells:
                raise InvalidInputError(
                    f"limit {each.tells} of node {each.label!r} of graph {self.name} takes its key from the input, which is "
                    f"sealed for {of}: name the limit with its key in options(limits=...)"
                )
        order = self._in_order()
        places = {old: new for new, old in enumerate(order)}
        spec = GraphSpec(
            name=self.name,
            limit=self.limit,
            on_failure=self.on_failure,
            on_dead_letter=self.on_dead_letter,
            nodes=tuple(_placed(self._nodes[old], places, names_owner=stored) for old in order),
        )
        spec.check()
        return spec

    async def as_task(
        self, client: Client, *, owner: str = ""
    ) -> tuple[Task[..., dict[str, Any]], dict[str, Any]]:
        """Return the task that runs this graph and its input, once what the nodes' code defines of limits is in the ledger.

        Raises: as `spec`; InvalidInputError for a graph to be stored; else as `ensure_limits`.
        """
        if self.takes_input:
            raise InvalidInputError(
                f"graph {self.name} takes values of its run's input: store it with graphs.put, and begin a run of it by "
                "its name"
            )
        spec = self.spec(owner=owner)
        await self.ensure_limits(client)
        return run_graph, {"graph": spec}

    async def ensure_limits(self, client: Client, *, plan: bool = False) -> None:
        """Write the limits that the nodes' code defines to the ledger, and check that each node may name its limits.

        `plan`: define nothing. Raises: ConfigurationError, UnreachableError; AccessDeniedError, which names the limit.
        """
        for options, task, own in self.declared:
            ensure = functools.partial(client.code_limits.ensure, options, task, own, plan=plan)
            await client.patience.read(ensure)

    def _add(
        self,
        task: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        after: Sequence[int],
        *,
        always: bool,
    ) -> NodeResult:
        plain, options = cast("tuple[Task[Any, Any], Options]", task.unpacked)
        takes: list[Take] = []
        named = plain.signature.named(args, kwargs)
        given = {name: self._without_results(value, [name], takes) for name, value in named.items()}
        count = 1 + self._counts[plain.name]
        label = options.name or (plain.name if count == 1 else f"{plain.name}#{count}")
        self.add_node(label, plain, options, given, takes=takes, after=after, always=always)
        return NodeResult(self, label, len(self._nodes) - 1)

    def _owner(
        self,
        task: Kind,
        options: Options,
        known: Mapping[str, Any],
        results: Collection[str],
        of_run: Collection[str],
    ) -> str:
        """Return whose data a node's job holds as its task says it, as in `GraphNode`; "" where it says nothing.

        `results` and `of_run`: the arguments that results of other nodes give, and the run's input.

        Raises: InvalidInputError, also where a result would say it.
        """
        if not options.owner:
            return ""
        if unknown := next((name for name in results if f"{{{name}}}" in options.owner), None):
            raise InvalidInputError(
                f"task {task.name} makes its owner of {unknown}, which is the result of another node here: pass it as a "
                "value"
            )
        given = {**task.signature.defaults, **known}
        job = KeySource(task.name, options.queue, options.order(), lambda: given)
        return owner_but(options.owner, job, of_run)

    def _limits(
        self, task: Kind, options: Options, known: Mapping[str, Any], late: Collection[str]
    ) -> tuple[str, ...]:
        """Return the limits of a node's job, with their keys; `late`: the arguments whose values are not known yet."""
        callbacks = (each.unpacked for _, each in task.callbacks)
        self.declared += [(chosen, plain.name, chosen.limits) for plain, chosen in callbacks]
        if options.limits or options.limits_in_code:
            self.declared.append((options, task.name, task.defaults.limits))
        if not options.declared and options.declared_queue is None:
            return options.limits
        for limit in options.limits_in_code:
            if not isinstance(limit, str) and limit.key in late:
                raise TaskDefinitionError(
                    f"limit {limit.name} of task {task.name} takes its key from {limit.key}, which is the result of "
                    "another node here, or of the run's input: pass it as a value, or name the limit with its key in options(limits=...)"
                )
        arguments = {**task.signature.defaults, **known}
        job = KeySource(task.name, options.queue, options.order(), lambda: arguments)
        return with_limits(job, options.declared, options.declared_queue).limits

    def _without_results(self, value: Any, at: list[str | int], takes: list[Take]) -> Any:
        """Return a value with None in the place of each result, and take note of which goes where."""
        if isinstance(value, NodeResult):
            takes.append(Take(at=tuple(at), of=self._place(value)))
            return None
        if type(value) in (list, tuple):
            some = cast("Sequence[Any]", value)
            return [self._without_results(each, [*at, n], takes) for n, each in enumerate(some)]
        if type(value) is dict:
            pairs = cast("Mapping[Any, Any]", value)
            return {
                key: self._without_results(each, [*at, key], takes) if isinstance(key, str) else each
                for key, each in pairs.items()
            }
        return value

    def _place(self, node: object) -> int:
        place = node.place_in(self) if isinstance(node, NodeResult) else None
        if place is None:
            raise InvalidInputError(f"{node!r} is no node of graph {self.name}: give what its add() returned")
        return place

    def _path(self, waiting: int, first: int) -> list[int]:
        """Return the nodes by which `waiting` waits for `first`, [] where it does not."""
        came_from: dict[int, int] = {}
        ahead = [waiting]
        while ahead:
            at = ahead.pop()
            if at == first:
                found = [at]
                while at != waiting:
                    at = came_from[at]
                    found.append(at)
                return found
            for need in self._nodes[at].after:
                if need not in came_from:
                    came_from[need] = at
                    ahead.append(need)
        return []

    def _in_order(self) -> list[int]:
        """Return the nodes with each behind those that it waits for; as they were added, where that is so already.

        Raises: InvalidInputError for nodes that wait for each other.
        """
        waits = [node.after for node in self._nodes]
        if all(need < at for at, needs in enumerate(waits) for need in needs):
            return list(range(len(waits)))
        try:
            return list(graphlib.TopologicalSorter(dict(enumerate(waits))).static_order())
        except graphlib.CycleError as error:
            raise self._cycle(error.args[1]) from error

    def _cycle(self, path: Sequence[int]) -> InvalidInputError:
        """Return the error for nodes that wait for each other; the first one of `path` is the last one, too."""
        labels = [self._nodes[each].label for each in path]
        shown = labels if len(labels) <= _SHOWN_MAX else [*labels[: _SHOWN_MAX - 2], "...", labels[-1]]
        return InvalidInputError(f"graph {self.name} would wait for itself: {' -> '.join(shown)}")


def _placed(node: _AddedNode, places: Mapping[int, int], *, names_owner: bool) -> GraphNode:
    """Return a node as it is stored, with the places that nodes have there."""
    takes = tuple(msgspec.structs.replace(take, of=places[take.of]) for take in node.node.takes)
    return GraphNode(
        label=node.label,
        node=msgspec.structs.replace(node.node, takes=takes),
        input=node.input,
        after=tuple(sorted(places[need] for need in node.after)),
        always=node.always,
        owner=node.owner if names_owner else "",
    )


async def require_same_graph(client: Client, ref: JobRef, spec: GraphSpec) -> None:
    """Compare a graph with the job that has its id already. Raises: InputMismatchError."""
    job = (await client.patience.read(lambda: load(client.log, ref))).job
    assert job is not None, "its id is taken"
    if job.task != run_graph.name:
        raise InputMismatchError(ref.job_id, ref.queue, ["task"])
    order = job.order
    text = await client.patience.read(lambda: client.inputs.get(order.input, order.input_ref, key=order.key))
    if not spec.is_input(text):
        raise InputMismatchError(ref.job_id, ref.queue, ["graph"])

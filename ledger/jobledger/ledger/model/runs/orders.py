"""Values in events of runs: the parent of a job, the children that a step asks for, the cause that woke a run.

Parts of stored events: released fields never change type, meaning or name, and new ones have defaults. Pure.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal, get_args

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, PayloadRef, Priority, Whole
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.rights.marks import OTHER_JOB_HERE

#: The kind of a step: a call of the run's own code (`once`: never begun a second time unasked), a wait for a time or a
#: signal, jobs (one, one an item, or a graph), a recorded value, a question about the code's version, a table, an undo.
StepKind = Literal["step", "once", "sleep", "wait", "call", "map", "graph", "value", "patch", "table", "undo"]
#: Reaction of a group to a failed child: `stop` begins no other, `collect` goes on and reports how each ended.
OnFailure = Literal["stop", "collect"]
#: Meaning of a dead letter among the children for their run: `wait`: no end yet, since a person may requeue it; `fail`:
#: an end.
OnDeadLetter = Literal["wait", "fail"]
#: Fate of the children that are open when their parent ends.
OnParentEnd = Literal["cancel", "abandon"]

#: The queue of the ledger's own runs; every worker takes them, beside those of its queues.
BUILT_IN_QUEUE: Final = "jobledger"
#: Attempts of a run of these workflows, in which no application code runs that could end the workers.
BUILT_IN_ATTEMPTS: Final = 50
#: The task of a run that stands for a batch, the key of the step whose children are the batch's jobs, and the name of
#: the signal with their number.
RUN_BATCH: Final = "run_batch"
BATCH_STEP: Final = "jobs"
BATCH_CLOSED: Final = "closed"
#: Beginning of the reason of a child's pause that no person asked for, but that follows its run's pause.
WITH_ITS_RUN: Final = "its run "

#: The most children of one step; a larger group is made of groups.
ITEMS_MAX: Final = 100_000
Item = Annotated[int, msgspec.Meta(ge=0, le=ITEMS_MAX - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=ITEMS_MAX)]
#: Items of a group, as pairs of the first and the last one of each unbroken range, in their order.
Ranges = tuple[tuple[Item, Item], ...]

ID_MAX: Final = 64  #: characters of a job's id, as of every name in a subject
_DIGEST: Final = 40


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The parent of a job."""

    queue: Annotated[str, OTHER_JOB_HERE]  #: queue of the parent
    job: Annotated[str, OTHER_JOB_HERE]  #: the parent's id
    step: Annotated[str, OTHER_JOB_HERE]  #: key of the parent's step that asked for it
    item: Item = 0  #: its number among the step's children, from 0
    asked: Whole = (
        0  #: stream sequence of the `step_started` that asked for it; 0: not known, or a job of a batch
    )


class RerunOf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The source of a rerun, whose first steps the rerun copies."""

    queue: str  #: queue of that run
    job: str  #: its id
    sequence: Whole  #: stream sequence of its newest event that counts
    hash: str  #: hex sha256 of that event as stored
    from_step: (
        str  #: key of the first step that is not copied; "": all completed steps are, wherever they are
    )
    steps: Whole = 0  #: number of steps that are copied, or that begin with copied ends of children
    reason: str = ""  #: reason of the rerun, if one was given
    children: Whole = 0  #: number of copied ends of children, of groups that had not completed
    ends_to: Whole = 0  #: the highest stream sequence of these ends

    @property
    def words(self) -> str:
        """The beginning of the rerun, in words."""
        return f"from step {self.from_step}" if self.from_step else "with what had completed"


class CopiedEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The source of a copied end of a step."""

    sequence: Whole  #: stream sequence of the event in the run that `rerun_of` names
    sha256: str  #: hex sha256 of that event as stored
    item: Item = 0  #: for a failed group: its first failed item
    run: str = ""  #: for a group: id of the run that asked for its children itself
    number: Whole = 0  #: for a group: number of the step in that run
    tells_queue: bool = (
        False  #: for a group: whether the ids of its children end in `-of-` and the run's queue
    )


class CopiedEnds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The source of copied ends of children, which another run had asked for with the same step."""

    queue: str  #: queue of that run: the source of this rerun, or an earlier source
    job: str  #: its id
    number: Whole  #: number of the step in that run
    asked: Whole  #: stream sequence of the `step_started` there
    sequences: tuple[
        Whole, ...
    ]  #: stream sequences of the children's `completed`, in the order of their items
    sha256: tuple[str, ...]  #: hex sha256 of these events as stored


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The children of another run whose ends stand for those of a step."""

    queue: str  #: queue of that run
    job: str  #: its id
    number: Whole  #: number of the step in that run
    asked: Whole  #: stream sequence of the `step_started` there
    items: Ranges = ()  #: ranges of the items


class Take(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The place of another node's result in the input of a node of a graph."""

    at: tuple[str | int, ...]  #: path to the place: the argument, then keys of objects and places in arrays
    of: Item  #: the node whose result it is


class Callback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The job that is enqueued when a run has ended, with the run's end as an argument."""

    on: Literal["success", "fail"]  #: the end it is for: the run completed, or any other end
    task: str  #: the name of the function it runs
    queue: str  #: its queue
    argument: str  #: its argument for the run's end
    priority: Priority = "normal"  #: one of the queue's three lanes
    max_attempts: Whole = 1  #: most `started` events, without attempts that were given back
    timeout_s: float | None = None  #: time limit of one attempt; None: no limit
    limits: tuple[str, ...] = ()  #: names of the limits it waits for
    fair: str = ""  #: the fairness key, as in `queued`
    tenant: str = ""  #: its tenant; "": the run's tenant
    correlation: str = ""  #: its correlation id; "": the run's
    metadata: dict[str, str] = {}  #: pairs of words about it
    version: str = ""  #: version of the workflow's code that it is bound to, if it is a run
    tells_queue: bool = False  #: its id ends in `-of-` and the run's queue if its own queue is another one
    #: Owner of its data; "": that of the run. If it is another one, the end has neither result nor error.
    owner: str = ""


class ChildNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One child of a group whose children are not all alike."""

    task: str  #: the name of the function it runs
    queue: str  #: its queue
    priority: Priority = "normal"  #: one of the queue's three lanes
    max_attempts: Whole = 1  #: most `started` events, without attempts that were given back
    timeout_s: float | None = None  #: time limit of one attempt; None: no limit
    limits: tuple[str, ...] = ()  #: names of the limits it waits for
    takes: tuple[Take, ...] = ()  #: results of other nodes that go into its input
    id: Annotated[str, OTHER_JOB_HERE] = ""  #: its id; "": the one that follows from its run's
    version: str = ""  #: version of the workflow's code that it is bound to, if it is a run
    on_end: tuple[Callback, ...] = ()  #: jobs to enqueue when it has ended, if it is a run
    deadline_s: float | None = (
        None  #: seconds from its first event until it is cancelled, if it is a run; None: never
    )
    label: str = ""  #: its label in the graph; "": only its task


class ChildOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The children that a step asks for: all facts that any process needs to make them."""

    task: str  #: the name of the function that each runs
    queue: str  #: their queue
    priority: Priority = "normal"  #: one of the queue's three lanes
    max_attempts: Whole = 1  #: most `started` events of each, without attempts that were given back
    timeout_s: float | None = None  #: time limit of one attempt; None: no limit
    tenant: str = ""  #: their tenant
    limits: tuple[str, ...] = ()  #: names of the limits that each waits for
    count: Count = 1  #: number of children
    is_open: bool = False  #: `count` is not known yet; a later `joined` has it
    limit: Count = 0  #: most children open at the same time; 0: all
    on_failure: OnFailure = "stop"  #: reaction of the group to a failed child
    on_dead_letter: OnDeadLetter = "fail"  #: whether a dead letter counts as an end
    on_parent_end: OnParentEnd = "cancel"  #: fate of open children when the parent ends
    after: tuple[tuple[Item, ...], ...] = ()  #: for a graph, per item: the earlier items that it waits for
    always: tuple[Item, ...] = ()  #: items of a graph that run even if items before them failed
    nodes: tuple[ChildNode, ...] = ()  #: per item, if the items are not all of one task
    version: str = ""  #: version of the workflow's code that they are bound to, if they are runs
    on_end: tuple[Callback, ...] = ()  #: jobs to enqueue when one has ended, if they are runs
    deadline_s: float | None = None  #: seconds from its first event until each is cancelled, if runs
    tells_queue: bool = False  #: ids end in `-of-` and the run's queue if children have another queue

    def node(self, item: int) -> ChildNode:
        """Return the node of an item."""
        if item < len(self.nodes):
            return self.nodes[item]
        return ChildNode(
            task=self.task,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout_s=self.timeout_s,
            limits=self.limits,
            version=self.version,
            on_end=self.on_end,
            deadline_s=self.deadline_s,
        )


class JoinFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Children of a step that ended, and those that may be made now: in `joined`, or in the `queued` that it causes."""

    step: str  #: key of the step
    completed: Ranges = ()  #: ranges of items that completed: pairs of the first and the last
    failed: Ranges = ()  #: ranges of items that ended otherwise
    opened: Ranges = ()  #: ranges of items whose jobs may be made from now on
    count: Count | None = None  #: number of items of an open group, set once, with its last item


class SignalFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message to a run: in `signalled`, or in the `queued` that it causes."""

    name: str  #: name of the signal
    id: str = ""  #: id chosen by the sender: two messages of one id are one; "": each is its own
    value: msgspec.Raw = NO_VALUE  #: its value
    value_ref: PayloadRef | None = None  #: place of a large value


def check_order(order: ChildOrder) -> None:
    """Refuse an order with children that could never end.

    Raises: InvalidInputError.
    """
    count, wrong = order.count, ""
    if not 0 <= count <= ITEMS_MAX:
        wrong = f"asks for {count:,} children: 0 to {ITEMS_MAX:,} are allowed, make groups of groups"
    elif not 0 <= order.limit <= ITEMS_MAX:
        wrong = f"has the limit {order.limit:,}: 0 (all) to {ITEMS_MAX:,} are allowed"
    elif order.is_open and (count or order.limit or order.after or order.always or order.nodes):
        wrong = "is open, so it has no count, limit or edges yet"
    elif len(order.after) not in (0, count) or len(order.nodes) not in (0, count):
        wrong = f"has {len(order.after)} lists of edges and {len(order.nodes)} nodes for {count} items"
    elif any(not 0 <= need < item for item, needs in enumerate(order.after) for need in needs):
        wrong = (
            "has an item that waits for itself or a later one: number them in an order in which they can run"
        )
    elif any(not 0 <= item < count for item in order.always):
        wrong = f"names an item to run always that is none of its {count}"
    if wrong:
        raise InvalidInputError(f"a group of children of task {order.task} {wrong}")


def check_callbacks(run: str, callbacks: Iterable[Callback]) -> None:
    """Refuse owners of the callbacks of a run that has none: its end stands in the clear, and its worker may have no key.

    Raises: InvalidInputError.
    """
    if wrong := next((each for each in callbacks if each.owner), None):
        raise InvalidInputError(
            f"task {wrong.task} on_{wrong.on} of {run} has the owner {wrong.owner}, and the run has none: give the run an "
            "owner, too"
        )


def check_on_dead_letter(value: object, of: str) -> None:
    """Refuse any value but those of `OnDeadLetter`; `of`: words for the children. Raises: InvalidInputError."""
    if value not in get_args(OnDeadLetter):
        raise InvalidInputError(f"on_dead_letter of {of} must be wait or fail, got {value!r}")


def child_id(parent_id: str, step_number: int, item: int, *, of_queue: str = "") -> str:
    """Return the id of a child: `<parent id>-<step number>-<item>`, or a digest of that if it is too long.

    `of_queue`: the run's queue if the id needs it, since runs of one id in two queues may have children in a third.
    """
    return short_id(of_run(f"{parent_id}-{step_number}-{item}", of_queue), "c")


def of_run(derived: str, queue: str) -> str:
    """Return an id that follows from a run's id, with the queue of that run; "": without the queue. Source: ADR 036."""
    return f"{derived}-of-{queue}" if queue else derived


def short_id(whole: str, letter: str) -> str:
    """Return an id as it is, or if it is too long, this letter and a digest of it."""
    if len(whole) <= ID_MAX:
        return whole
    return f"{letter}{hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST]}"


def bits_of(ranges: Ranges) -> int:
    """Return the items of ranges as a number: bit i stands for item i."""
    found = 0
    for first, last in ranges:
        if first <= last:
            found |= ((1 << (last - first + 1)) - 1) << first
    return found


def bits(items: Iterable[int]) -> int:
    """Return items as a number: bit i stands for item i."""
    found = bytearray((ITEMS_MAX + 7) // 8)
    for item in items:
        found[item >> 3] |= 1 << (item & 7)
    return int.from_bytes(found, "little")


def ranges_of(items: int) -> Ranges:
    """Return a number of bits as the ranges of the items that it stands for."""
    found: list[tuple[int, int]] = []
    at = 0
    while items:
        gap = (items & -items).bit_length() - 1
        items >>= gap
        length = (~items & (items + 1)).bit_length() - 1
        found.append((at + gap, at + gap + length - 1))
        items >>= length
        at += gap + length
    return tuple(found)


def items_of(items: int) -> list[int]:
    """Return the items that a number of bits stands for, in their order."""
    return [item for first, last in ranges_of(items) for item in range(first, last + 1)]

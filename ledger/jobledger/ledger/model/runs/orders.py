"""What events of runs carry beside plain values: whose child a job is, which children a step asks for, what woke a run.

Parts of stored events: released fields never change type, meaning or name, and new ones have defaults. Pure.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal, get_args

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, PayloadRef, Priority, Whole
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.rights.marks import OTHER_JOB_HERE

#: What a step is: a call of the run's own code (`once`: never begun a second time unasked), a wait for a time or a signal,
#: jobs (one, one an item, or a graph), a recorded value, a question about the code's version, a table, an undo.
StepKind = Literal["step", "once", "sleep", "wait", "call", "map", "graph", "value", "patch", "table", "undo"]
#: What a group does once a child of it failed: `stop` begins no other, `collect` goes on and reports how each ended.
OnFailure = Literal["stop", "collect"]
#: What a dead letter among the children is to their run: `wait`, no end yet, since a person may requeue it; `fail`, an end.
OnDeadLetter = Literal["wait", "fail"]
#: What becomes of the children that are open when their parent ends.
OnParentEnd = Literal["cancel", "abandon"]

#: Where the ledger's own runs wait; every worker takes them, beside those of its queues.
BUILT_IN_QUEUE: Final = "jobledger"
#: Attempts of a run of these workflows: no application code runs in them that could have ended the workers.
BUILT_IN_ATTEMPTS: Final = 50
#: The task of a run that stands for a batch, the key of the step whose children are the batch's jobs, and the name of the
#: signal that says how many there are.
RUN_BATCH: Final = "run_batch"
BATCH_STEP: Final = "jobs"
BATCH_CLOSED: Final = "closed"
#: How the reason begins of a child's pause that no person asked for: the child is paused because its run is.
WITH_ITS_RUN: Final = "its run "

#: How many children one step may have; a larger group is made of groups.
ITEMS_MAX: Final = 100_000
Item = Annotated[int, msgspec.Meta(ge=0, le=ITEMS_MAX - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=ITEMS_MAX)]
#: Items of a group, as pairs of the first and the last one of each unbroken range, in their order.
Ranges = tuple[tuple[Item, Item], ...]

ID_MAX: Final = 64  #: characters of a job's id, as of every name in a subject
_DIGEST: Final = 40


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Whose child a job is."""

    queue: Annotated[str, OTHER_JOB_HERE]  #: of the parent
    job: Annotated[str, OTHER_JOB_HERE]  #: the parent's id
    step: Annotated[str, OTHER_JOB_HERE]  #: key of the parent's step that asked for it
    item: Item = 0  #: its number in that group, from 0
    asked: Whole = (
        0  #: stream sequence of the `step_started` that asked for it; 0: not known, or it is of a batch
    )


class RerunOf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run whose first steps another run begins with."""

    queue: str  #: of that run
    job: str  #: its id
    sequence: Whole  #: stream sequence of its newest event that counts
    hash: str  #: hex sha256 of that event as stored
    from_step: (
        str  #: key of the first step that is not copied; "": whatever completed is copied, wherever it is
    )
    steps: Whole = 0  #: how many steps are copied, or begin with copied ends of children
    reason: str = ""  #: why it begins again, if somebody said so
    children: Whole = 0  #: how many ends of children are copied, of groups that had not completed
    ends_to: Whole = 0  #: the highest stream sequence of these ends

    @property
    def words(self) -> str:
        """From where it begins again, as a person reads it."""
        return f"from step {self.from_step}" if self.from_step else "with what had completed"


class CopiedEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where the end of a step was copied from."""

    sequence: Whole  #: stream sequence of the event in the run that `rerun_of` names
    sha256: str  #: hex sha256 of that event as stored
    item: Item = 0  #: of a group that failed: the first item that did
    run: str = ""  #: of a group: the id of the run whose children they are, which asked for them itself
    number: Whole = 0  #: of a group: the number of the step in that run
    tells_queue: bool = (
        False  #: of a group: whether the ids of its children end in `-of-` and the run's queue
    )


class CopiedEnds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where the ends of children were copied from: children that another run had asked for with the same step."""

    queue: str  #: of that run: the one that `rerun_of` names, or one that it was a rerun of
    job: str  #: its id
    number: Whole  #: of the step in that run
    asked: Whole  #: stream sequence of the `step_started` there
    sequences: tuple[
        Whole, ...
    ]  #: stream sequences of the children's `completed`, in the order of their items
    sha256: tuple[str, ...]  #: hex sha256 of these events as stored


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The children of another run whose ends stand for those of a step."""

    queue: str  #: of that run
    job: str  #: its id
    number: Whole  #: of the step in that run
    asked: Whole  #: stream sequence of the `step_started` there
    items: Ranges = ()  #: ranges of the items


class Take(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where the result of another node of a graph goes in a node's input."""

    at: tuple[str | int, ...]  #: the way to it: the argument, then keys of objects and places in arrays
    of: Item  #: whose result


class Callback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The job that is enqueued when a run has ended, and that is told how."""

    on: Literal["success", "fail"]  #: which end it is for: that the run completed, or any other
    task: str  #: the name of the function it runs
    queue: str  #: where it waits
    argument: str  #: its argument that says how the run ended
    priority: Priority = "normal"  #: which of the queue's three lanes
    max_attempts: Whole = 1  #: how many `started` it may have, beyond those given back
    timeout_s: float | None = None  #: of one attempt; None: no limit
    limits: tuple[str, ...] = ()  #: names of the limits it waits for
    fair: str = ""  #: the fairness key, as in `queued`
    tenant: str = ""  #: whom it belongs to; "": whom the run belongs to
    correlation: str = ""  #: the first cause it belongs to; "": that of the run
    metadata: dict[str, str] = {}  #: pairs of words about it
    version: str = ""  #: of the workflow's code that it is bound to, where it is a run
    tells_queue: bool = False  #: its id ends in `-of-` and the run's queue where it waits in another one


class ChildNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one child of a group runs, where they are not all alike."""

    task: str  #: the name of the function it runs
    queue: str  #: where it waits
    priority: Priority = "normal"  #: which of the queue's three lanes
    max_attempts: Whole = 1  #: how many `started` it may have, beyond those given back
    timeout_s: float | None = None  #: of one attempt; None: no limit
    limits: tuple[str, ...] = ()  #: names of the limits it waits for
    takes: tuple[Take, ...] = ()  #: results of other nodes that go into its input
    id: Annotated[str, OTHER_JOB_HERE] = ""  #: its id; "": the one that follows from its run's
    version: str = ""  #: of the workflow's code that it is bound to, where it is a run
    on_end: tuple[Callback, ...] = ()  #: what is enqueued when it has ended, where it is a run
    deadline_s: float | None = (
        None  #: how long after its first event it is cancelled, where it is a run; None: never
    )
    label: str = ""  #: what its graph calls it; "": nothing but its task


class ChildOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The children that a step asks for: all that is needed to make them, by whoever does."""

    task: str  #: the name of the function that each runs
    queue: str  #: where they wait
    priority: Priority = "normal"  #: which of the queue's three lanes
    max_attempts: Whole = 1  #: how many `started` each may have, beyond those given back
    timeout_s: float | None = None  #: of one attempt; None: no limit
    tenant: str = ""  #: whom they belong to
    limits: tuple[str, ...] = ()  #: names of the limits that each waits for
    count: Count = 1  #: how many there are
    is_open: bool = False  #: `count` is not known yet: a later `joined` says it
    limit: Count = 0  #: how many may be open at the same time; 0: all
    on_failure: OnFailure = "stop"  #: what the group does once a child failed
    on_dead_letter: OnDeadLetter = "fail"  #: whether one that became a dead letter has ended
    on_parent_end: OnParentEnd = "cancel"  #: what becomes of open ones when the parent ends
    after: tuple[tuple[Item, ...], ...] = ()  #: of a graph, per item: the items before it that it waits for
    always: tuple[Item, ...] = ()  #: items of a graph that run whatever became of those they wait for
    nodes: tuple[ChildNode, ...] = ()  #: per item, where the items are not all of one task
    version: str = ""  #: of the workflow's code that they are bound to, where they are runs
    on_end: tuple[Callback, ...] = ()  #: what is enqueued when one has ended, where they are runs
    deadline_s: float | None = None  #: how long after its first event each is cancelled, where they are runs
    tells_queue: bool = False  #: ids end in `-of-` and the run's queue where children wait in another one

    def node(self, item: int) -> ChildNode:
        """Return what an item runs."""
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
    """Which children of a step ended, and which may be made now: in `joined`, or in the `queued` that it causes."""

    step: str  #: key of the step
    completed: Ranges = ()  #: ranges of items that completed: pairs of the first and the last
    failed: Ranges = ()  #: ranges of items that ended otherwise
    opened: Ranges = ()  #: ranges of items whose jobs may be made from now on
    count: Count | None = None  #: how many items an open group has: said once, by whoever made the last one


class SignalFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message to a run: in `signalled`, or in the `queued` that it causes."""

    name: str  #: what it is about
    id: str = ""  #: chosen by the sender: the same one twice is the same message; "": each is its own
    value: msgspec.Raw = NO_VALUE  #: what it says
    value_ref: PayloadRef | None = None  #: where a large value lies


def check_order(order: ChildOrder) -> None:
    """Refuse an order of which some children could never end.

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


def check_on_dead_letter(value: object, of: str) -> None:
    """Refuse any value but those of `OnDeadLetter`; `of` names the children. Raises: InvalidInputError."""
    if value not in get_args(OnDeadLetter):
        raise InvalidInputError(f"on_dead_letter of {of} must be wait or fail, got {value!r}")


def child_id(parent_id: str, step_number: int, item: int, *, of_queue: str = "") -> str:
    """Return the id of a child: `<parent id>-<step number>-<item>`, or a digest of it where that is too long.

    `of_queue`: the run's queue where the id needs it: runs with one id in two queues may have children in a third.
    """
    return short_id(of_run(f"{parent_id}-{step_number}-{item}", of_queue), "c")


def of_run(derived: str, queue: str) -> str:
    """Return an id that follows from a run's, with the queue of that run; "": without. Source: ADR 036."""
    return f"{derived}-of-{queue}" if queue else derived


def short_id(whole: str, letter: str) -> str:
    """Return an id as it is, or this letter and a digest of it where it is too long."""
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

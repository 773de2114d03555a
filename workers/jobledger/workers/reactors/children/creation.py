"""Making the children that a run's step has opened, for the reactor and for the worker with the run's claim.

Several processes may do so at once: each child's first event is a conditional append, and existing children are left
alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.children import child_ref
from jobledger.ledger.limits.inherited_slots import limits_of_children
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, catch_up, link, load, transact
from jobledger.ledger.model.commands import Enqueue, Join, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    IllegalTransitionError,
    InvalidError,
    JobNotFoundError,
    RefusedError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Order, RerunOf
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.orders import Member, Take, bits, items_of
from jobledger.ledger.model.runs.reruns import has_copied
from jobledger.ledger.model.runs.steps import Step, admissible
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.seals import seal_value
from jobledger.ledger.model.subjects import JobRef, first_leaf
from jobledger.ledger.protocols import Client
from jobledger.ledger.reruns.plans import plan_rerun
from jobledger.workers.reactors.children.reach import ChildFollower

# Children of a rerun that are runs themselves: each begins with the steps that the same child of the source had
# completed. This is so only in a rerun with `failed`: there a child that failed half-way does not begin from its start,
# either.


async def rerun_of_child(client: Client, run: Job, step: Step, item: int) -> RerunOf | None:
    """Return the run that a rerun's child begins again, the source's same child; None if that had done nothing.

    Raises: UnreachableError; WrongSequenceError if a replica does not show the source's child yet.
    """
    source = run.order.rerun_of
    while source is not None and not source.from_step:
        ref = JobRef(queue=source.queue, job_id=source.job)
        before = (await load(client.log, ref)).job
        asked = None if before is None else before.steps.get(step.key)
        if before is None or (asked is not None and not _is_same(asked, step)):
            return None
        if asked is not None and asked.opened >> item & 1:
            child = child_ref(ref, asked, item)
            if await client.log.newest_sequence(client.log.names.chain(child)):
                return await _planned(client, child, source.reason)
        source = before.order.rerun_of  # the source ended before it made that child
    return None


def _is_same(asked: Step, step: Step) -> bool:
    """Return whether two runs asked for the same children."""
    return asked.order is not None and (asked.kind, asked.target, asked.input_sha256) == (
        step.kind,
        step.target,
        step.input_sha256,
    )


async def _planned(client: Client, child: JobRef, reason: str) -> RerunOf | None:
    job = (await load(client.log, child)).job
    copies = None if job is None else job.order.rerun_of
    if job is not None and copies is not None and not has_copied(copies, job.steps):
        return copies  # it ended before it had copied all steps: copy from its own source instead
    try:
        plan = await plan_rerun(client, child, failed=True, reason=reason)
    except WrongSequenceError:
        raise
    except (
        InvalidError,
        JobNotFoundError,
        RefusedError,
    ):  # a job without steps, or without steps to copy
        return None
    # A run without steps to copy is still needed if it may have child runs with such steps.
    has_runs_below = any(step.order is not None for step in plan.again)
    return plan.rerun_of if plan.rerun_of.steps or has_runs_below else None


#: Most first events of children in flight.
_IN_FLIGHT_MAX: Final = 500
#: Most subjects that one request looks up.
_LOOKED_UP_MAX: Final = 1_000
#: Most bytes of decoded inputs of groups in memory: items of a large group are needed many times.
_KEPT_BYTES_MAX: Final = 16 << 20

Items = list[msgspec.Raw]
#: Most runs whose inherited limits are kept in memory, and most steps whose own children are.
_INHERITED_MAX: Final = 1_000
_STEPS_MAX: Final = 1_000
#: Most chains of children that are read at a time.
_READ_AT_ONCE: Final = 32
_NOTHING: Final = msgspec.Raw(b"null")
_decode_items = msgspec.json.Decoder(Items).decode


class ChildIdTakenError(CorruptLedgerError):
    """The id of a child belongs to another job, which was enqueued with this id: the run cannot go on."""

    def __init__(self, child: JobRef, parent: JobRef) -> None:
        self.child = child
        super().__init__(
            f"job {child.queue}/{child.job_id} is not the child of run {parent.job_id} whose id it has: "
            f"cancel the run if it waits, begin it again under another id, and give no job an id that begins with "
            f"`{parent.job_id}-`"
        )


class ChildOpener:
    """Enqueues children; one object per process, since it keeps the inputs of large groups in memory."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reaching = ChildFollower(client)
        self._kept: OrderedDict[str, Items] = OrderedDict()  # inputs by the digest of their array
        self._kept_bytes: dict[str, int] = {}
        #: By run and its newest grant: the limits of which its children need no slot of their own.
        self._inherited: OrderedDict[tuple[JobRef, int], tuple[str, ...]] = OrderedDict()
        #: By run and the sequence of a step: the items whose jobs are known to be its children.
        self._own: OrderedDict[tuple[JobRef, int], int] = OrderedDict()

    async def open(self, ref: JobRef, view: JobView, key: str, items: int, *, again: bool) -> JobView:
        """Enqueue children of the step `key`, then look whether the run has ended or paused meanwhile.

        `view`: the run after the event that opened them. `items`: a number in which bit i stands for item i; each must
        be among `step.opened`. `again`: some of them may exist, because another process may have begun this and died.
        A process that ends or pauses the run cancels or pauses the children that exist by then; children made later are
        cancelled or paused here, so that no child is missed. Returns the run as it was at that look.

        It may be repeated, and called by several processes. When it returns, every child is in the ledger.

        Raises: ChildIdTakenError, PayloadMissingError for items that are gone, LedgerFullError, UnreachableError;
            WrongSequenceError if a replica lags: call it again later.
        """
        if again:
            view, items = await self._admit(ref, view, key, items)
        job = view.job
        assert job is not None, "only a run has children"
        step = job.steps[key]
        if step.order is None or step.order.is_open:
            return view  # no group, or a group whose children a client makes
        if again:
            items = await self._missing(ref, job, step, items)
        if not items:
            return view
        await self._enqueue(ref, job, step, items)
        self._keep_own(ref, step, items)
        return await self._reaching.follow(ref, view, {key: items})

    async def _admit(self, ref: JobRef, view: JobView, key: str, items: int) -> tuple[JobView, int]:
        """Open the children that are due but were not opened while the run was paused or a dead letter."""
        assert view.job is not None, "only a run has children"
        if not admissible(view.job.steps[key]):
            return view, items
        try:
            view = await transact(self._client.log, ref, Join(step=key), self._client.stamp, known=view)
        except IllegalTransitionError:  # another process opened them, or the run has to end
            view = await catch_up(self._client.log, ref, view)
        assert view.job is not None, "a chain only grows"
        return view, items | view.job.steps[key].open

    async def _inherits(self, ref: JobRef, job: Job, step: Step) -> tuple[str, ...]:
        """Return the limits whose slots children share with the runs above; none for children that may outlive these.

        Raises: UnreachableError.
        """
        assert step.order is not None, "only a group has children"
        if not (job.order.limits or job.order.inherits) or step.order.on_parent_end == "abandon":
            return ()
        granted = (ref, job.grant)
        found = self._inherited.get(granted)
        if found is None:
            found = self._inherited[granted] = await limits_of_children(self._client.log, job)
            if len(self._inherited) > _INHERITED_MAX:
                self._inherited.popitem(last=False)
        return found

    async def _missing(self, ref: JobRef, job: Job, step: Step, items: int) -> int:
        """Return the items that seem to have no job; a lagging replica may hide a job, which does no harm.

        Items whose ids belong to other jobs are among them, which `_enqueue` finds out.
        """
        assert step.order is not None, "only a group has children"
        inherits = await self._inherits(ref, job, step)
        derived = [item for item in items_of(items) if not step.order.node(item).id]
        subjects = {item: first_subject(self._client, ref, step, item, inherits) for item in derived}
        found = items
        for some in _portions(list(subjects), _LOOKED_UP_MAX):
            present = await self._client.log.present([subjects[item] for item in some])
            there = [item for item in some if subjects[item] in present]
            found &= ~await self._own_among(ref, step, there)
        return found

    async def _own_among(self, ref: JobRef, step: Step, there: list[int]) -> int:
        """Return the items whose jobs are children of the step, and not other jobs with their ids.

        Each job is read once, since many ends of a large group may be delivered again.
        """
        known = self._own.get((ref, step.sequence), 0)
        own = known & bits(there)
        for some in _portions([item for item in there if not known >> item & 1], _READ_AT_ONCE):
            seen = await asyncio.gather(*(self._is_ours(*_child(ref, step, item)) for item in some))
            own |= bits(item for item, is_ours in zip(some, seen, strict=True) if is_ours is not False)
        self._keep_own(ref, step, own)
        return own

    def _keep_own(self, ref: JobRef, step: Step, items: int) -> None:
        self._own[ref, step.sequence] = self._own.pop((ref, step.sequence), 0) | items
        if len(self._own) > _STEPS_MAX:
            self._own.popitem(last=False)

    async def _enqueue(self, ref: JobRef, job: Job, step: Step, items: int) -> None:
        inputs, inherits = await self._items(step), await self._inherits(ref, job, step)
        taken: list[JobRef] = []
        for some in _portions(items_of(items), _IN_FLIGHT_MAX):
            asked = [await self._command(ref, job, step, item, inputs) for item in some]
            commands = [_on_slots_above(each, inherits) for each in asked]
            appended = [self._submit(command) for command in commands]
            outcomes = await asyncio.gather(*appended, return_exceptions=True)
            for command, outcome in zip(commands, outcomes, strict=True):
                if isinstance(outcome, WrongSequenceError):
                    member = command.order.member
                    assert member is not None, "a child says whose it is"
                    is_ours = await self._is_ours(command.ref, command.task, member)
                    if is_ours is None:
                        raise WrongSequenceError(self._client.log.names.chain(command.ref), 0)
                    if not is_ours:
                        taken.append(command.ref)
                elif isinstance(outcome, BaseException):
                    raise outcome
        if taken:
            raise ChildIdTakenError(taken[0], ref)

    async def _command(self, ref: JobRef, job: Job, step: Step, item: int, inputs: Items) -> Enqueue:
        order = step.order
        assert order is not None, "only a group has children"
        node = order.node(item)
        text, key = bytes(inputs[item]), job.order.key
        if node.takes:
            text = await self._with_results(ref, step, node.takes, text, key)
        # An item of a run with an owner is sealed already and stays so: the process that makes the child needs no key.
        value, reference = await self._client.inputs.put(text, what="input of a child", key="")
        rerun_of = None
        if job.order.rerun_of is not None:
            rerun_of = await rerun_of_child(self._client, job, step, item)
        return Enqueue(
            ref=child_ref(ref, step, item),
            task=node.task,
            order=copied(
                Order,
                node,
                member=_child(ref, step, item)[2],
                input=value,
                input_ref=reference,
                tenant=order.tenant or job.order.tenant,
                correlation=job.order.correlation or ref.job_id,
                trace=job.trace,
                rerun_of=rerun_of,
                key=key,
            ),
        )

    async def _with_results(
        self, ref: JobRef, step: Step, takes: Sequence[Take], text: bytes, key: str
    ) -> bytes:
        """Return an input with the results of other nodes in their places, null for a node without a result.

        `key`: the key that seals the input, the results, and the new input. Raises: ErasedError, KeyUnavailableError.
        """
        inputs = self._client.inputs
        whole: Any = msgspec.json.decode(await inputs.get(msgspec.Raw(text), None, key=key))
        results = {of: await self._result(ref, step, of, key) for of in {take.of for take in takes}}
        for take in takes:
            inside = whole
            for part in take.at[:-1]:
                inside = inside[part]
            inside[take.at[-1]] = results[take.of]
        made = msgspec.json.encode(whole)
        return seal_value(await self._client.keys.key(key), made) if key else made

    async def _result(self, ref: JobRef, step: Step, item: int, key: str) -> msgspec.Raw:
        """Return the result of a child as JSON; null for a child that did not complete.

        Raises: WrongSequenceError if a replica does not show its end yet.
        """
        if not step.ended >> item & 1 or step.failed >> item & 1:
            return _NOTHING
        child = child_ref(ref, step, item)
        job = (await load(self._client.log, child)).job
        if job is None or job.state is not JobState.COMPLETED:
            raise WrongSequenceError(self._client.log.names.chain(child), 0)
        # Results of runs' children are stored with inputs, since other results are kept for a shorter time than a run
        # may take.
        return msgspec.Raw(await self._client.inputs.get(job.result, job.result_ref, key=key))

    def _submit(self, command: Enqueue) -> asyncio.Future[int]:
        log, member = self._client.log, command.order.member
        assert member is not None, "a child says whose it is"
        stamp: Stamp = msgspec.structs.replace(self._client.stamp(), causation=member.job)
        return log.submit(link(EMPTY_CHAIN, decide(None, command, stamp), log.names).entries)

    async def _is_ours(self, child: JobRef, task: str, member: Member) -> bool | None:
        """Return whether the job with the id is this child; None if a replica does not show it yet."""
        job = (await load(self._client.log, child)).job
        if job is None:
            return None
        own = job.member
        if own is not None and not own.asked:  # an older release made it
            member = msgspec.structs.replace(member, asked=0)
        return (job.task, own) == (task, member)

    async def _items(self, step: Step) -> Items:
        """Return the inputs of a group's children; keep those of large groups."""
        reference = step.items_ref
        if reference is None:
            return _decode_items(bytes(step.items))
        found = self._kept.get(reference.sha256)
        if found is None:
            found = _decode_items(await self._client.inputs.get(step.items, reference, key=""))
            self._kept[reference.sha256] = found
            self._kept_bytes[reference.sha256] = reference.size_bytes
            while sum(self._kept_bytes.values()) > _KEPT_BYTES_MAX and len(self._kept) > 1:
                oldest, _ = self._kept.popitem(last=False)
                del self._kept_bytes[oldest]
        self._kept.move_to_end(reference.sha256)
        return found


def _child(run: JobRef, step: Step, item: int) -> tuple[JobRef, str, Member]:
    """Return the reference of a child, its task, and its `Member`, which names its parent."""
    assert step.order is not None, "only a group has children"
    member = Member(queue=run.queue, job=run.job_id, step=step.key, item=item, asked=step.sequence)
    return child_ref(run, step, item), step.order.node(item).task, member


def first_subject(client: Client, parent: JobRef, step: Step, item: int, inherits: tuple[str, ...]) -> str:
    """Return the subject under which a child's first event is stored; `inherits`: as in its order."""
    assert step.order is not None, "only a group has children"
    node = step.order.node(item)
    leaf = first_leaf(node.priority, _own(node.limits, inherits), node.deadline_s)
    return client.log.names.of_type(child_ref(parent, step, item), leaf)


def _on_slots_above(command: Enqueue, inherits: tuple[str, ...]) -> Enqueue:
    """Return the command of a child without slots of the limits that it inherits."""
    if not inherits:
        return command
    order = command.order
    own = msgspec.structs.replace(order, limits=_own(order.limits, inherits), inherits=inherits)
    return msgspec.structs.replace(command, order=own)


def _own(limits: tuple[str, ...], inherits: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of a child's limits of which it takes slots itself."""
    return tuple(limit for limit in limits if limit not in inherits) if inherits else limits


def _portions(items: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

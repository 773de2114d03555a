"""What a check proves of runs and their children, across chains: `child`, `join` and `orphan`.

A run records what it opened and counted (`steps`, the model's fold), its children record how they ended, and each is
compared with the other. For each step with children four sets of items are kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import Final

from jobledger.audit.verify.records import Open, Record, task_of
from jobledger.audit.verify.report import RUN_RULES
from jobledger.audit.verify.runs.copies import Copies
from jobledger.audit.verify.runs.families import FAMILIES, Family, Group
from jobledger.audit.verify.runs.run_rules import fact_in, named
from jobledger.audit.verify.store import RecordStore
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.aggregate import Broken, Rule
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import (
    Cancelled,
    Carried,
    Completed,
    DeadLettered,
    Discarded,
    Held,
    Joined,
    Member,
    Queued,
    StepStarted,
)
from jobledger.ledger.model.job import CLOSED_STATES, Job, JobState
from jobledger.ledger.model.runs.orders import BATCH_STEP, RUN_BATCH, ChildOrder, bits_of, items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef

#: The rules that compare chains with each other.
_ACROSS: Final[tuple[Rule, ...]] = ("child", "join", "orphan", "copied")
_END = (Completed, Cancelled, DeadLettered, Discarded)


class RunRules:
    """The rules of runs about more than one chain, fed with the events of one ledger in stream order. Call `close`."""

    def __init__(
        self,
        jobs: RecordStore[Record],
        *,
        from_sequence: int,
        is_selection: bool,
        memory_bytes_max: int | None,
    ) -> None:
        """`jobs`: the checker's records. `is_selection`: events are left out, so that chains are not compared."""
        self._jobs = jobs
        self._from_start = from_sequence == 1
        self._is_selection = is_selection
        self._families: RecordStore[Family] = RecordStore(FAMILIES, memory_bytes_max)
        self.copies = Copies(jobs, from_sequence=from_sequence, is_selection=is_selection)
        self.runs = 0  #: jobs with steps
        self.children = 0  #: jobs that say whose child they are
        self.children_unproven = 0  #: children whose run began before the range

    def close(self) -> None:
        """Close the store of records, with its part on the disk."""
        self._families.close()
        self.copies.close()

    def proven(self, broken: Container[str]) -> tuple[Rule, ...]:
        """Return which of the rules of runs hold; none if there was no run."""
        if not self.runs:
            return ()
        left_out: set[Rule] = set(_ACROSS) if self._is_selection else set()
        if self.children_unproven:
            left_out.add("child")
        if self.copies.unproven:
            left_out.add("copied")
        return tuple(rule for rule in RUN_RULES if rule not in broken and rule not in left_out)

    def job(self, before: Job | None, stored: StoredEvent, after: Job) -> Iterator[Broken]:
        """Take in an event of a run or of a child, which the records have, and yield what is wrong with it."""
        event, member = stored.event, after.order.member
        if after.steps and not (before is not None and before.steps):
            self.runs += 1
        if before is None and member is not None:
            self.children += 1
        yield from self.copies.job(before, stored, after)
        if self._is_selection:
            return
        if isinstance(event, Carried):
            self._carried(before, event, after)
            return
        if before is None and member is not None:
            yield from self._begins(member, after)
        fact = fact_in(event)
        if isinstance(event, Joined) and event.copied is not None:
            self._copies(event)
        elif fact is not None and before is not None:
            yield from self._counts(before, after, stored)
        elif isinstance(event, StepStarted) and event.order is not None:
            self._asks(after, event.step, event.order)
        elif isinstance(event, _END):
            self._ends(stored, after)
        elif isinstance(event, Queued | Held) and event.cause == "requeued":
            self._requeued(after)

    def _family(self, job: Job) -> tuple[str, Family | None]:
        name = f"{job.queue}/{job.id}"
        return name, self._families.get(name)

    def _group(self, name: str, key: str, *, is_whole: bool = True) -> Group:
        """Return the children of a step; a new group if none is known."""
        family = self._families.get(name)
        if family is None:
            family = Family()
            self._families.put(name, family)
        group = family.groups.get(key)
        if group is None:
            group = family.groups[key] = Group(is_whole=is_whole)
            self._families.grow(len(key) + group.size())
        return group

    def _begins(self, member: Member, child: Job) -> Iterator[Broken]:
        """Compare the first event of a child with the step that asked for it."""
        name = f"{member.queue}/{member.job}"
        record = self._jobs.get(name)
        is_gone = record is None and not self._from_start
        if is_gone or (isinstance(record, Open) and record.job is None):
            self.children_unproven += 1  # its run began before the range
            return
        run = record.job if isinstance(record, Open) else None
        family = self._families.get(name)
        left = {} if family is None else family.left
        step = left.get(member.step) if run is None else run.steps.get(member.step)
        group = self._group(name, member.step)
        if step is None and member.step == BATCH_STEP and record is not None and task_of(record) == RUN_BATCH:
            # The client of a batch makes its jobs, even before a worker begins it or after somebody ended it.
            group.is_early, group.cancels = True, False
        else:
            why = _not_asked_for(name, step, member, child)
            if why is not None:
                yield "child", why
            elif member.item in group.begun:
                yield (
                    "child",
                    f"it is a second child for item {member.item} of step {member.step!r} of {name}",
                )
        self._families.grow(group.begun.add(member.item))

    def _asks(self, run: Job, key: str, order: ChildOrder) -> None:
        # The jobs of a batch may be there before its run begins, and thus in an archive.
        is_whole = self._from_start or not (order.is_open and run.carried_sequence)
        group = self._group(f"{run.queue}/{run.id}", key, is_whole=is_whole)
        group.cancels = order.on_parent_end == "cancel"
        group.waits_for_person = order.on_dead_letter == "wait"
        group.is_early = False

    def _counts(self, before: Job, after: Job, stored: StoredEvent) -> Iterator[Broken]:
        """Compare the ends that a run counts with those that its children recorded."""
        fact = fact_in(stored.event)
        assert fact is not None, "it counts ends of children"
        name, family = self._family(after)
        step = before.steps.get(fact.step)
        if step is None or step.order is None:
            return  # the rule of one chain reports it
        group = self._group(name, fact.step) if family is None else family.groups.get(fact.step, Group())
        known = -1 if group.is_whole else group.begun.number
        early = bits_of(fact.completed) & known & ~group.completed.number
        if early:
            yield "join", _too_early(group, early, fact.step, "completed")
        # A worker of a release without `on_dead_letter` counts each dead letter as failed.
        may_fail = group.failed.number | group.dead.number
        early = bits_of(fact.failed) & ~may_fail if group.is_whole else 0
        if early:
            yield "join", _too_early(group, early, fact.step, "failed")
        waits = group.ended & ~after.steps[fact.step].ended
        group.waits_since = stored.stored_at if waits else None

    def _copies(self, event: Joined) -> None:
        """Take in ends that a rerun copied: it makes no children for these items."""
        group = self._group(f"{event.queue}/{event.job}", event.step)
        for item in items_of(bits_of(event.completed)):
            for seen in (group.begun, group.completed):
                self._families.grow(seen.add(item))

    def _ends(self, stored: StoredEvent, job: Job) -> None:
        member = job.order.member
        if member is not None:
            self._child_ends(member, stored, job.state)
        name, family = self._family(job)
        if family is None:
            return
        if (
            job.dead_reason != "diverged"
        ):  # such a run keeps its children: it goes on with them once its code is mended
            family.ended_at = family.ended_at or stored.stored_at
        if job.state in CLOSED_STATES:
            left = {key: step for key, step in job.steps.items() if _has_open_children(step)}
            groups = {key: each for key, each in family.groups.items() if key in left or each.is_early}
            self._families.put(name, Family(groups=groups, ended_at=family.ended_at, left=left))

    def _child_ends(self, member: Member, stored: StoredEvent, state: JobState) -> None:
        family = self._families.get(f"{member.queue}/{member.job}")
        group = None if family is None else family.groups.get(member.step)
        if group is None:
            return  # nobody asked for it, or its run is not known
        had_ended = group.has_ended(member.item)
        self._families.grow(group.add_end(member.item, state))
        if not had_ended and group.has_ended(member.item):
            group.waits_since = group.waits_since or stored.stored_at

    def _requeued(self, job: Job) -> None:
        """Take in that a dead letter goes on: its children are no orphans then, and neither is it if its run ended."""
        _, family = self._family(job)
        if family is not None:
            family.ended_at = None
        member = job.order.member
        parent = None if member is None else self._families.get(f"{member.queue}/{member.job}")
        if member is not None and parent is not None and parent.ended_at and member.step in parent.groups:
            parent.groups[member.step].begun.remove(member.item)

    def _carried(self, before: Job | None, event: Carried, job: Job) -> None:
        """Take in a run or a child from a `carried`, since its events are in an archive."""
        if before is not None and not before.is_incomplete:
            return
        for step in event.job_state.steps:
            if step.order is not None:
                group = self._group(f"{job.queue}/{job.id}", step.key, is_whole=False)
                group.cancels = step.order.on_parent_end == "cancel"
                group.waits_for_person = step.order.on_dead_letter == "wait"
        member = job.order.member
        if member is not None:
            group = self._group(f"{member.queue}/{member.job}", member.step, is_whole=False)
            self._families.grow(group.begun.add(member.item))
            if job.is_final:
                self._families.grow(group.add_end(member.item, job.state))

    def at_end(self, name: str, job: Job, now: datetime | None, grace: timedelta) -> Iterator[Broken]:
        """Yield what is wrong with a job that is not over when the ledger ends."""
        if now is None or self._is_selection:
            return
        if job.steps:
            family = self._families.get(name)
            for key, group in ({} if family is None else family.groups).items():
                yield from _left_at_end(job, key, group, now, grace)
        member = job.order.member
        if member is None or job.is_final or job.cancel_requested:
            return
        parent = self._families.get(f"{member.queue}/{member.job}")
        own = None if parent is None else parent.groups.get(member.step)
        if parent is None or parent.ended_at is None or own is None or not own.cancels:
            return
        since = now - max(parent.ended_at, job.created_at)
        if member.item in own.begun and since > grace:
            yield (
                "orphan",
                f"it is {job.state.value}, and its run {member.job} ended {since.total_seconds():,.0f} s ago",
            )


def _has_open_children(step: Step) -> bool:
    """Return whether children of a step may still begin or end.

    A client may be adding jobs of a batch, and not know yet that it was cancelled.
    """
    if step.order is None:
        return False
    return bool(step.open) or (step.order.is_open and step.count is None)


def _not_asked_for(run: str, step: Step | None, member: Member, child: Job) -> str | None:
    """Return why a child does not belong to a step, None when it does."""
    item, key = member.item, member.step
    if step is None or step.order is None:
        return f"it says that it is a child of {run} by step {key!r}, which has no open children"
    order = step.order
    if order.is_open:  # the client that makes its jobs gives them their names
        beyond = step.count is not None and item >= step.count
        return f"it is item {item} of step {key!r} of {run}, which has {step.count}" if beyond else None
    if not step.opened >> item & 1:
        return f"it is item {item} of step {key!r} of {run}, which was not opened"
    node = order.node(item)
    own_id = child_ref(JobRef(queue=member.queue, job_id=member.job), step, item).job_id
    if child.id != own_id:
        return f"the child for item {item} of step {key!r} of {run} has the id {own_id}"
    if member.asked not in (0, step.sequence) and not step.has_ended:
        return f"it was asked for at sequence {member.asked:,}, and step {key!r} of {run} began at {step.sequence:,}"
    if (child.queue, child.task) != (node.queue, node.task):
        return f"step {key!r} of {run} asked for task {node.task} in queue {node.queue}"
    return None


def _too_early(group: Group, items: int, key: str, what: str) -> str:
    otherwise = items & group.ended
    if otherwise:
        return f"it counts {named(otherwise)} of step {key!r} as {what}, and that child ended otherwise"
    return f"it counts {named(items)} of step {key!r} as {what}, and that child has not ended"


def _left_at_end(job: Job, key: str, group: Group, now: datetime, grace: timedelta) -> Iterator[Broken]:
    step = job.steps.get(key)
    if step is None or step.order is None:
        return
    waits = group.ended & ~step.ended
    if waits and group.waits_since is not None and now - group.waits_since > grace:
        late_s = (now - group.waits_since).total_seconds()
        yield (
            "orphan",
            f"{named(waits)} of step {key!r} ended up to {late_s:,.0f} s ago, which nobody counted",
        )
    is_stopped = job.is_final or job.cancel_requested or job.state is JobState.PAUSED or step.has_ended
    if is_stopped or step.order.is_open or not group.is_whole or now - job.updated_at <= grace:
        return
    missing = step.open & ~group.begun.number
    if missing:
        late_s = (now - job.updated_at).total_seconds()
        yield (
            "orphan",
            f"{named(missing)} of step {key!r} may exist for {late_s:,.0f} s or more, and nobody made it",
        )

"""Children of a run: jobs that a step asks for, and whose results are the step's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from jobledger.ledger.children import child_id_of
from jobledger.ledger.limits.keys import InputArguments, KeySource, with_limits
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidError,
    InvalidInputError,
    PayloadTooLargeError,
)
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import (
    ITEMS_MAX,
    ChildOrder,
    OnDeadLetter,
    OnFailure,
    StepKind,
    items_of,
)
from jobledger.ledger.model.runs.steps import Step, failed_item
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.seals import owner_of
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.options import Options, refuse_of_maker
from jobledger.ledger.owner_names import owner_named
from jobledger.ledger.runs.errors import ChildFailedError, DivergedError, StepFailedError
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.runs.nodes import node_of
from jobledger.ledger.runs.passage import Passage, StepRequest
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.steps import digest_of
from jobledger.ledger.tasks import Task

R_co = TypeVar("R_co", covariant=True)


class Outcome(Generic[R_co]):
    """How a child ended: `state`, and either `value()` or `error`."""

    __slots__ = ("_failed", "_result", "error", "state")

    def __init__(self, end: MemberEnd, result: Any, failed: ChildFailedError | None) -> None:
        self.state = end.state
        self.error = end.error  #: a sentence; "" for a completed child
        self._result = result
        self._failed = failed

    def __repr__(self) -> str:
        """Show state and error."""
        return f"<outcome {self.state}{': ' + self.error if self.error else ''}>"

    def value(self) -> R_co:
        """Return the task's result. Raises: ChildFailedError for a child that did not complete."""
        if self._failed is not None:
            raise self._failed
        return cast("R_co", self._result)


class Group:
    """The children of one step: requested, made, awaited; their results are recorded as the step's result."""

    def __init__(
        self,
        passage: Passage,
        task: Task[Any, Any],
        options: Options,
        inputs: Sequence[Mapping[str, Any]],
        *,
        kind: StepKind,
        limit: int = 0,
        on_failure: OnFailure = "stop",
        on_dead_letter: OnDeadLetter = "wait",
    ) -> None:
        """`inputs`: keyword arguments of each child.

        Raises: TaskDefinitionError for options that a child cannot have, ConfigurationError.
        """
        own = msgspec.structs.replace(options, owner="")  # its owner is compared below
        refuse_of_maker(own, f"a child of task {task.name}", "its run")
        if len(inputs) > ITEMS_MAX:
            raise ConfigurationError(
                f"a group of {len(inputs):,} children of {task.name} is more than {ITEMS_MAX:,}: make groups of groups"
            )
        if type(limit) is not int or not 0 <= limit <= ITEMS_MAX:
            raise ConfigurationError(
                f"limit of a group must be a whole number from 0 (no limit) to {ITEMS_MAX:,}, got {limit!r}"
            )
        self._passage = passage
        self._task = task
        self._options = options
        self._inputs = inputs
        self._kind: StepKind = kind
        self._limit = limit
        self._on_failure: OnFailure = on_failure
        self._on_dead_letter: OnDeadLetter = on_dead_letter

    async def begin(self, branch: Branch, name: str = "") -> StepRequest:
        """Request the children; when this returns, all that may exist now have been made.

        Inputs are checked when they are recorded; later attempts compare only their digest.

        Raises: InvalidInputError; DivergedError for inputs that differ from the recorded ones.
        """
        passage, task = self._passage, self._task
        digest = digest_of(self._inputs)  # first, so that refused inputs use up no key
        key = branch.key(name or self._options.name or task.name)
        asked = await passage.ask(key, self._kind, task.name, digest)
        journal = passage.journal
        if asked.known is not None:
            if not asked.known.has_ended:
                await journal.open(asked.key, again=True)
            return asked
        if not self._inputs:
            await passage.complete(asked, b"[]")
            return asked
        texts = [task.signature.encode((), each) for each in self._inputs]
        self._require_owner(texts)
        await journal.ensure_limits(task, self._options)
        items, reference = await journal.put_items(texts, what=f"inputs of step {asked.key}")
        await passage.start(asked, order=self._order(journal.job, texts), items=items, items_ref=reference)
        await journal.open(asked.key, again=False)
        return asked

    def _require_owner(self, texts: Sequence[bytes]) -> None:
        """Refuse children whose data has another owner than the run, since the run stores their inputs and results.

        Raises: InvalidInputError.
        """
        if not self._options.owner:
            return
        seals = self._passage.journal.key
        own = "" if seals is None else owner_of(seals.id)
        for text in texts:
            wanted = owner_named(self._task, self._options, text)
            if wanted != own:
                raise InvalidInputError(
                    f"a child of task {self._task.name} has the owner {wanted}, and its run has "
                    f"{own or 'none'}: give the run that owner"
                )

    def _order(self, run: Job, texts: Sequence[bytes]) -> ChildOrder:
        """Return the order of the children; priority, tenant and correlation are the run's if none are given."""
        options = self._options
        priority = options.priority if options.priority != "normal" else run.order.priority
        node = node_of(self._task, options, priority=priority)
        base = copied(
            ChildOrder,
            node,
            tenant=options.tenant or run.order.tenant,
            count=len(self._inputs),
            limit=self._limit,
            on_failure=self._on_failure,
            on_dead_letter=self._on_dead_letter,
            tells_queue=True,
        )
        if not options.declared and options.declared_queue is None:
            return base
        limits = [self._limits(base, text) for text in texts]
        if len(set(limits)) == 1:
            return msgspec.structs.replace(base, limits=limits[0])
        nodes = tuple(msgspec.structs.replace(node, limits=each) for each in limits)
        return msgspec.structs.replace(base, nodes=nodes)

    def _limits(self, base: ChildOrder, text: bytes) -> tuple[str, ...]:
        """Return the limits of one child, with the keys that its input gives them."""
        options, task = self._options, self._task
        order = msgspec.structs.replace(options.order(), tenant=base.tenant)
        seals = self._passage.journal.key
        index = None if seals is None else seals.index
        job = KeySource(task.name, options.queue, order, InputArguments(task.signature.decode, text), index)
        return with_limits(job, options.declared, options.declared_queue).limits

    async def ends(self, asked: StepRequest) -> list[MemberEnd]:
        """Wait for the children, record their outcome and return it.

        Raises: ChildFailedError for the first failed one, if the group does not collect failures; StepFailedError if
            their results are more than a run may read at once.
        """
        passage = self._passage
        step = passage.journal.job.steps[asked.key]
        if not step.has_ended:
            step = await passage.waits.until_over(asked.key)
            if step.failed and self._on_failure == "stop":
                await record_failure(passage, asked, step)
            else:
                await record_results(passage, asked, self._recorded)
            step = passage.journal.job.steps[asked.key]
        if step.state == "failed":
            raise failure_of(passage, step)
        return self._read(await passage.result_of(step))

    def _recorded(self, ends: Sequence[MemberEnd]) -> bytes:
        """Return the value to record: all ends for a group that collects failures, else only the results."""
        if self._on_failure == "collect":
            return msgspec.json.encode(ends)
        return b"[" + b",".join(bytes(each.result) for each in ends) + b"]"

    def _read(self, text: bytes) -> list[MemberEnd]:
        if self._on_failure == "collect":
            return msgspec.json.decode(text, type=list[MemberEnd])
        return [MemberEnd("completed", each) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]

    def value(self, asked: StepRequest, end: MemberEnd) -> Any:
        """Return a child's result, read by its task's return annotation. Raises: DivergedError."""
        try:
            return self._task.signature.read_result(bytes(end.result), asked.key)
        except InvalidError as error:
            raise DivergedError(asked.key, 0, "with other results", str(error)) from error

    def outcome(self, asked: StepRequest, item: int, end: MemberEnd) -> Outcome[Any]:
        """Return the outcome of a child for the run's code."""
        if end.state == "completed":
            return Outcome(end, self.value(asked, end), None)
        step = self._passage.journal.job.steps[asked.key]
        job_id = _child_of(self._passage.journal.job, step, item)
        return Outcome(end, None, ChildFailedError(asked.key, item, job_id, end.error))


async def record_results(
    passage: Passage, asked: StepRequest, text_of: Callable[[Sequence[MemberEnd]], bytes]
) -> None:
    """Record the outcome of a step's children, or that it is more than a run may read at once."""
    try:
        await passage.complete(asked, text_of(await passage.journal.ends(asked.key)), of_group=True)
    except PayloadTooLargeError as error:  # the same in every attempt
        await passage.fail(
            asked, ErrorInfo(kind="invalid_result", type=type(error).__name__, message=str(error))
        )


async def record_failure(
    passage: Passage, asked: StepRequest, step: Step, name: Callable[[int], str] = lambda _: ""
) -> None:
    """Record that a step failed because of its first failed child; `name`: word for an item in the error."""
    item = items_of(step.failed)[0]
    (end,) = await passage.journal.ends(asked.key, items=1 << item)
    message = f"{name(item)}{end.error}"
    await passage.fail(asked, ErrorInfo(kind="child_failed", type=ChildFailedError.__name__, message=message))


def failure_of(passage: Passage, step: Step) -> ChildFailedError | StepFailedError:
    """Return the error of a step that failed because of a child, or because of the size of all results."""
    error = passage.error_of(step)
    if error is not None and error.kind == "invalid_result":
        return StepFailedError(step.key, error, step.tries)
    item = failed_item(step)
    sentence = "" if error is None else error.message
    return ChildFailedError(step.key, item, _child_of(passage.journal.job, step, item), sentence)


def _child_of(run: Job, step: Step, item: int) -> str:
    return child_id_of(JobRef(queue=run.queue, job_id=run.id), step, item)


class Child(Generic[R_co]):
    """A job of a run that goes on beside it; made by `Run.start`."""

    def __init__(self, passage: Passage, group: Group, asked: StepRequest) -> None:
        self._passage = passage
        self._group = group
        self._asked = asked
        run = passage.journal.job
        self.id = _child_of(run, run.steps[asked.key], 0)  #: the job's id

    async def result(self) -> R_co:
        """Wait for the job's end and return its task's result, the same in every attempt.

        Raises: ChildFailedError for a job that did not complete.
        """
        with self._passage.enter(self._asked.key):
            (end,) = await self._group.ends(self._asked)
            return cast("R_co", self._group.value(self._asked, end))

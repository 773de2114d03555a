"""An order that is written down until a client adds its job to the ledger: complete, so that no code of its task is needed.

What it says is decided when it is written: id, time, keys of limits, key of a unique job. So to add it again makes no second
job. It is written as it is: who adds a job that has an owner seals it, and makes the key of a unique one anew. The fields are those of the enqueue path; a reader refuses a field that it does not know instead of dropping it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.job_orders import (
    NamedLimits,
    command_of,
    identified,
    limits_named,
    new_job_id,
    wish_of,
)
from jobledger.ledger.limits.declarations import Limit
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError, PayloadTooLargeError
from jobledger.ledger.model.events import Order, PayloadRef
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.subjects import JobRef, check_token, check_users_queue, check_users_task
from jobledger.ledger.model.unique import KeyRef
from jobledger.ledger.options import Options
from jobledger.ledger.signature import UNREADABLE
from jobledger.ledger.unique.keys import Wish, chosen_arguments
from jobledger.ledger.unique.rule import Unique


class _KnownOrder(Order, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """An order without fields that this release does not know."""


class WrittenOrder(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """All values that begin one job."""

    queue: str
    id: str
    task: str
    order: _KnownOrder
    run_at: datetime | None = None
    by: str = ""  #: the enqueuer
    compares: bool = False  #: whether its id is refused if a job with another input has it
    rule: Unique | None = None  #: of a unique job
    key: KeyRef | None = None  #: likewise
    arguments: msgspec.Raw = NO_VALUE  #: likewise: those that make the key
    limits: tuple[NamedLimits, ...] = ()  #: which its code defines, or names
    #: Whose data it holds: who adds it to the ledger seals it. "": nobody's, or everybody's where all is sealed.
    owner: str = ""

    @classmethod
    def read(cls, text: str) -> WrittenOrder:
        """Return the order in a text. Raises: InvalidInputError for any other text, or a later release's."""
        try:
            found = msgspec.json.decode(text, type=cls)
        except UNREADABLE as error:
            raise InvalidInputError(
                f"this is no order that this release reads ({error}): a later release wrote it, or no release did"
            ) from error
        check_users_queue(found.queue)
        check_users_task(found.task)
        check_token("job id", found.id)
        return found

    @property
    def ref(self) -> JobRef:
        """The name of its job."""
        return JobRef(queue=self.queue, job_id=self.id)

    def text(self) -> str:
        """Return it as JSON text."""
        return msgspec.json.encode(self).decode()

    def command(self, large: tuple[msgspec.Raw, PayloadRef | None] | None = None) -> Enqueue:
        """Return the command that begins the job; `large`: the reference to its input, if that is stored elsewhere.

        Raises: InvalidInputError.
        """
        stored: dict[str, Any] = {} if large is None else {"input": large[0], "input_ref": large[1]}
        order = copied(Order, self.order, **stored)
        return Enqueue(ref=self.ref, task=self.task, run_at=self.run_at, order=order)

    def check_sealable(self) -> None:
        """Refuse an order in which words stand in the clear that follow from its input, for who seals it cannot tell them.

        Raises: InvalidInputError.
        """
        found = ""
        if any(
            isinstance(each, Limit) and _is_of_input(each.key)
            for of in self.limits
            for each in of.limits_in_code
        ):
            found = "a limit takes its key from the input"
        elif self.order.fair and _is_of_input(self.order.fair.partition(":")[0]):
            found = "its queue takes turns by a value of the input"
        elif self.rule is not None and self.rule.is_by_id:
            found = "its id follows from its input"
        if found:
            raise InvalidInputError(
                f"job {self.id} of task {self.task} has an owner, and {found}, which is sealed: enqueue it in the ledger "
                "itself"
            )

    def wish(self, command: Enqueue) -> Wish:
        """Return the wish of a unique job; `command` begins it."""
        assert self.rule is not None, "only unique jobs wish something"
        if self.key is None:
            raise InvalidInputError(f"the order of job {self.id} has a rule and no key: it was altered")
        return Wish(
            command=command,
            rule=self.rule,
            key=self.key,
            arguments=self.arguments,
            debounce=None,
            max_wait=None,
            by=self.by,
        )


def _is_of_input(source: str | None) -> bool:
    """Return whether a key is made of a value that is sealed; a tenant is not."""
    return source not in (None, "tenant")


def write_order(task: Kind, options: Options, text: bytes, clock: Clock, by: str) -> WrittenOrder:
    """Return the order of a job with a checked input; `by`: the author, unless the options have one.

    Raises: as `Ledger.enqueue`, except errors of the server; InvalidInputError also for options that need an answer or
    an order of calls: `on_conflict="reject"`, `debounce_s`, and `name`.
    """
    _refuse_answers(task, options)
    limit = LedgerConfig().payload_bytes_max
    if len(text) > limit:
        raise PayloadTooLargeError(task.signature.what, len(text), limit)
    options = identified(task, options, text)
    job_id = new_job_id() if options.id is None else options.id
    command = command_of(task, options, job_id, text, clock)
    wish = None if options.unique is None else wish_of(task, options, command, text, clock)
    command = command if wish is None else wish.command
    owner = ""
    if options.owner:
        from jobledger.ledger.owner_names import owner_named  # noqa: PLC0415 - others need nothing of it

        owner = owner_named(task, options, text)
    arguments = NO_VALUE if wish is None else wish.arguments
    if owner and options.unique is not None:  # however long: who seals the job makes the key of them
        arguments = msgspec.Raw(chosen_arguments(task.signature, options.unique, task.name, text))
    written = WrittenOrder(
        queue=command.ref.queue,
        id=command.ref.job_id,
        task=command.task,
        order=copied(_KnownOrder, command.order),
        run_at=command.run_at,
        by=options.by or by,
        compares=options.id is not None and options.on_other_input != "keep",
        rule=options.unique,
        key=None if wish is None else wish.key,
        arguments=arguments,
        limits=tuple(limits_named(task, options)),
        owner=owner,
    )
    if owner:
        written.check_sealable()
    return written


def _refuse_answers(task: Kind, options: Options) -> None:
    if options.name:
        raise InvalidInputError(
            f"a job of task {task.name} has no name={options.name!r} but in a run or a graph: give it an id"
        )
    if options.debounce_s is not None:
        raise InvalidInputError(
            f"task {task.name} has debounce_s, by which the last of several calls counts, and written orders reach the "
            "ledger in any order: enqueue it in the ledger itself"
        )
    if options.unique is not None and options.unique.on_conflict == "reject":
        raise InvalidInputError(
            f"task {task.name} is unique with on_conflict='reject', and nobody is there to be told when the order reaches "
            "the ledger: use 'return' or 'replace'"
        )

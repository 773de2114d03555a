"""A task's settings: `Options`, which become part of each job, and `Rules`, which stay in the worker's code.

Beside them the options in the forms of callers and of answers. A field of each job's order is declared three times: for
Python, for requests, and for answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, cast

import msgspec
from msgspec.structs import force_setattr

from jobledger.ledger.backoff import Backoff
from jobledger.ledger.hooks import Hooks
from jobledger.ledger.limits.declarations import Limit, Queue, divided, queue_of
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError, TaskDefinitionError
from jobledger.ledger.model.events import LABELS, PRIORITIES, Order, PayloadRef, Priority
from jobledger.ledger.model.inputs import (
    check_traceparent,
    check_word,
    checked_limits,
    checked_metadata,
    keep_utc,
)
from jobledger.ledger.model.limits.names import UNNAMED, split
from jobledger.ledger.model.subjects import check_token, check_users_queue
from jobledger.ledger.outcome import check_delay
from jobledger.ledger.templates import check_owner_option, check_template
from jobledger.ledger.unique.rule import Unique, check_debounce

MAX_ATTEMPTS_DEFAULT: Final = 5
MAX_ATTEMPTS_LIMIT: Final = 1_000
TIMEOUT_S_LIMIT: Final = 7 * 24 * 3600.0

RunIn = Literal["auto", "process"]
OnOtherInput = Literal["error", "keep"]
ExceptionTypes = tuple[type[BaseException], ...]


_NOTHING_SAID: Final[tuple[object, ...]] = ("", "", {}, (), "", "", "")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options by which a task's jobs are queued and tried; each job keeps the options of its enqueue."""

    queue: str = "default"
    priority: Priority = "normal"
    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    timeout_s: float | None = None  #: of one attempt; None: no limit
    id: str | None = None  #: None: made by `id_template`, else a new UUIDv7
    id_template: str = (
        ""  #: template of the id, filled from the input, such as `charge-{tenant_id}-{invoice}`; "": none
    )
    delay_s: float | None = None  #: seconds after the enqueue before it may run
    run_at: datetime | None = None  #: not before this moment; one that is past means at once
    limits: tuple[str, ...] = ()  #: limits the job waits for, `name` or `name:key`; at most 8, kept sorted
    declared: tuple[Limit, ...] = ()  #: more limits, each with the key that the job has for it
    declared_queue: Queue | None = None  #: a `queue` given as an object, with limits of its own
    tenant: str = ""  #: the job's tenant; "": the tenant of the job that makes it, if one does
    tenant_template: str = (
        ""  #: template of the tenant, filled from the input if `tenant` is empty, such as `{tenant_id}`
    )
    correlation: str = ""  #: the first cause it belongs to; "": that of the job that makes it, if one does
    metadata: dict[str, str] = {}  #: pairs of words about the job, at most 16
    #: The owner of the job's data, such as `person:17` or, filled from the input, `person:{user_id}`: its values are
    #: sealed. "": the owner of the job that makes it, if one does.
    owner: str = ""
    unique: Unique | None = None  #: at most one job of its kind; None: as many as are enqueued
    debounce_s: float | None = None  #: seconds between the last call of its kind and the run with its input
    max_wait_s: float | None = None  #: with `debounce_s`: at most this long after the first call
    #: If the id belongs to a job with another input or task: raise an `InputMismatchError`, or return that job,
    #: unchanged.
    on_other_input: OnOtherInput = "error"
    name: str = ""  #: name of its step in a run, or of its node in a graph; "": that of the task
    by: str = ""  #: author in its first event; "": the client that enqueues it
    trace: str = (
        ""  #: W3C traceparent that the job belongs to; "": that of the span it is enqueued in, if one records
    )

    def __post_init__(self) -> None:  # noqa: C901 - one question for each option
        """Check every option.

        Raises: InvalidTokenError, ConfigurationError, InvalidInputError for a moment without time zone.
        """
        check_token("queue", self.queue)
        if self.id is not None:
            check_token("job id", self.id)
        if self.owner != "":
            check_owner_option(self.owner)
        if self.id_template != "" or self.tenant_template != "" or self.on_other_input != "error":
            self._check_identity()
        if self.unique is not None or self.debounce_s is not None or self.max_wait_s is not None:
            force_setattr(self, "unique", self._checked_unique())
        if self.priority not in PRIORITIES:
            message = f"priority must be high, normal or low, got {self.priority!r}"
            raise ConfigurationError(message)
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS_LIMIT:
            message = f"max_attempts must be a whole number from 1 to {MAX_ATTEMPTS_LIMIT}, got {self.max_attempts!r}"
            raise ConfigurationError(message)
        if self.timeout_s is not None:
            _check_limit("timeout_s", self.timeout_s)
        if self.delay_s is not None:
            if self.run_at is not None:
                raise ConfigurationError("give delay_s or run_at, not both")
            check_delay("delay_s", self.delay_s)
        if self.run_at is not None:
            if not isinstance(cast("object", self.run_at), datetime):
                raise ConfigurationError(f"run_at must be a datetime with a time zone, got {self.run_at!r}")
            keep_utc(self, "run_at")
        # By value: an empty value of another type must not pass as the default.
        said = (self.tenant, self.correlation, self.metadata, self.limits, self.by, self.trace, self.name)
        if said != _NOTHING_SAID:
            self._check_words()

    def order(
        self,
        value: msgspec.Raw = NO_VALUE,
        reference: PayloadRef | None = None,
        notify: str = "",
        key: str = "",
    ) -> Order:
        """Return the order of a job with these options: with `ORDER_FIELDS`, the trace, and this input.

        Every order is made here. The fields are named one by one because that is four times as fast.
        """
        return Order(
            input=value,
            input_ref=reference,
            notify=notify,
            key=key,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout_s=self.timeout_s,
            tenant=self.tenant,
            limits=self.limits,
            trace=self.trace,
            correlation=self.correlation,
            metadata=self.metadata,
        )

    def changed(
        self, given: Mapping[str, Any], *, queue: str | Queue | None, limits: Iterable[str | Limit]
    ) -> Options:
        """Return these options changed by those given for one job; None changes nothing, and `limits` are added.

        Raises: InvalidTokenError, ConfigurationError, InvalidInputError.
        """
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if queue is not None:  # the task's own queue may be given by its name
            own = self.declared_queue
            found = queue_of(own if own is not None and queue == own.name else queue)
            changes["queue"], changes["declared_queue"] = found
            if found[0] != self.queue:
                check_users_queue(found[0])
        if limits != ():
            names, declared = divided(limits)
            changes["limits"] = (*self.limits, *names)
            changes["declared"] = (*self.declared, *declared)
        return msgspec.structs.replace(self, **changes)

    @property
    def limits_in_code(self) -> tuple[Limit | str, ...]:
        """The limits that code declares with a job's task, with its options and with its queue."""
        queue = self.declared_queue
        return (*self.declared, *(() if queue is None else queue.limits))

    def _check_identity(self) -> None:
        if self.id_template:
            check_template("id", self.id_template)
        if self.tenant_template:
            check_template("tenant", self.tenant_template)
        if self.on_other_input not in ("error", "keep"):
            raise ConfigurationError(f"on_other_input must be error or keep, got {self.on_other_input!r}")

    def _check_words(self) -> None:
        for label in LABELS:
            if (word := getattr(self, label)) != "":
                check_word(label, word)
        if self.name != "":
            check_token("name", self.name)
        if self.by != "":
            check_word("by", self.by)
        if self.trace != "":
            check_traceparent(self.trace)
        if self.metadata != {}:
            force_setattr(self, "metadata", checked_metadata(self.metadata))
        if self.limits != ():
            force_setattr(self, "limits", _own_limits(self.limits))

    def _checked_unique(self) -> Unique:
        """Return the arguments that make the job unique: for a debounced job all, unless some are named."""
        unique = Unique() if self.unique is None else self.unique
        if not isinstance(cast("object", unique), Unique):
            raise ConfigurationError(f"unique must be a Unique(...), got {unique!r}")
        is_timed = self.delay_s is not None or self.run_at is not None
        check_debounce(self.debounce_s, self.max_wait_s, unique, is_timed=is_timed)
        if (self.id is not None or self.id_template) and unique.is_by_id:
            raise ConfigurationError(
                "give id or Unique(for_s=...), not both: the period gives the job its id"
            )
        return unique


#: The options that are also fields of the job's order: wishes of a caller beside task, input and time. The order's
#: `unique` is the hash of a key, and its `trace` follows from the caller's span.
ORDER_FIELDS: Final = tuple(
    name
    for name in Order.__struct_fields__
    if name in Options.__struct_fields__ and name not in {"trace", "unique"}
)


class LabelOptions(TypedDict, total=False):
    """The labels of a job in Python calls; a missing one, or None, is not given."""

    tenant: str | None  #: the job's tenant
    correlation: str | None  #: its first cause
    metadata: Mapping[str, str] | None


class OrderOptions(LabelOptions, total=False):
    """The options of one enqueue in Python calls; a missing one, or None, is as in the task's code."""

    id: str | None  #: None: a new UUIDv7
    priority: Priority | None
    max_attempts: int | None
    timeout_s: float | None  #: of one attempt
    delay_s: float | None  #: seconds before it may run
    run_at: datetime | None  #: not before this moment
    on_other_input: OnOtherInput | None  #: the reaction if the id has another input; see `Options`
    owner: str | None  #: owner of its data, `kind:id`: its values are sealed


class LabelFields(msgspec.Struct, frozen=True, kw_only=True):
    """`LabelOptions` as fields of a request."""

    tenant: str | None = None
    correlation: str | None = None
    metadata: dict[str, str] | None = None


class OrderFields(LabelFields, frozen=True, kw_only=True):
    """`OrderOptions` as fields of a request, with queue and limits."""

    queue: str | None = None
    id: str | None = None
    priority: Priority | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    delay_s: float | None = None
    run_at: datetime | None = None
    limits: tuple[str, ...] = ()
    on_other_input: OnOtherInput | None = None
    owner: str | None = None


class NodeFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a job that belongs to a run, as fields of a request: its labels are those of the run."""

    queue: str | None = None
    priority: Priority | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None  #: of one attempt
    limits: tuple[str, ...] = ()  #: beside those of the task


class JobHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of every object that shows a job: its name, its state, and unchanged fields of its order.

    `JobSnapshot` of the remote client gives a new field a default, because an older gateway does not send it.
    """

    id: str
    queue: str
    task: str
    status: str
    priority: str
    tenant: str
    correlation: str
    metadata: dict[str, str]
    limits: tuple[str, ...]


#: Options that a job made by a run, a graph or a batch cannot have.
_OF_MAKER: Final = ("owner", "id", "delay_s", "run_at", "unique", "debounce_s", "by")


def refuse_of_maker(options: Options, what: str, maker: str) -> None:
    """Refuse options that the maker of a job decides: its id, its time, and its author.

    `what` names the job and `maker` who makes it, such as "a child of task send" and "its run".

    Raises: TaskDefinitionError.
    """
    wrong = next((name for name in _OF_MAKER if getattr(options, name) not in {None, ""}), None)
    if wrong == "owner":
        raise TaskDefinitionError(
            f"{what} cannot have an owner, since {maker} has none: let its code enqueue a job that has one"
        )
    if wrong is not None:
        raise TaskDefinitionError(f"{what} cannot have {wrong}: {maker} gives it its id and begins it")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which workers run a task. Not part of the job: a new release changes them for waiting jobs, too."""

    #: `auto`: a coroutine on the loop, a function in a thread; `process`: in a pool of processes.
    run_in: RunIn = "auto"
    backoff: Backoff = Backoff()
    retry_on: ExceptionTypes = ()  #: if given, any other exception makes the job a dead letter at once
    give_up_on: ExceptionTypes = ()  #: these make the job a dead letter at once, even if attempts are left
    hooks: Hooks = Hooks()
    heartbeat_s: float | None = (
        None  #: seconds without a sign of life after which an attempt fails; None: no limit
    )

    def __post_init__(self) -> None:
        """Check every rule.

        Raises: ConfigurationError.
        """
        if self.run_in not in ("auto", "process"):
            raise ConfigurationError(f"run_in must be auto or process, got {self.run_in!r}")
        if not isinstance(cast("object", self.backoff), Backoff):
            raise ConfigurationError(f"backoff must be a Backoff(...), got {self.backoff!r}")
        if not isinstance(cast("object", self.hooks), Hooks):
            raise ConfigurationError(f"hooks must be a Hooks(...), got {self.hooks!r}")
        _check_exceptions("retry_on", self.retry_on)
        _check_exceptions("give_up_on", self.give_up_on)
        if self.heartbeat_s is not None:
            _check_limit("heartbeat_s", self.heartbeat_s)

    def may_retry(self, error: BaseException) -> bool:
        """Return whether an exception allows another attempt; if both lists match, `give_up_on` wins."""
        if isinstance(error, self.give_up_on):
            return False
        return not self.retry_on or isinstance(error, self.retry_on)


def _own_limits(given: object) -> tuple[str, ...]:
    """Return checked names of limits. Raises: InvalidInputError, InvalidTokenError."""
    limits = checked_limits(given)
    for each in limits:
        if split(each)[0] in UNNAMED:
            raise InvalidInputError(
                f"limit {each!r} has a name that the ledger itself uses ({', '.join(UNNAMED)}): choose another"
            )
    return limits


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _check_limit(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= TIMEOUT_S_LIMIT:
        message = f"{name} must be above 0 and at most a week (604800), got {value!r}"
        raise ConfigurationError(message)


def _check_exceptions(name: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(map(_is_exception_type, cast("tuple[object, ...]", value))):
        raise ConfigurationError(f"{name} must be a tuple of exception classes, got {value!r}")

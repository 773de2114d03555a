"""The command that begins a job, made from a task, its options and an input. Pure: needs no server.

A client uses it for an enqueue, and an outbox for a job that waits in the application's own database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import uuid_utils

from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.limits.declarations import Limit
from jobledger.ledger.limits.keys import InputArguments, KeySource, with_limits
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.events import Order, PayloadRef
from jobledger.ledger.model.seals import ValueKey, seal_words
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.options import Options
from jobledger.ledger.outcome import moment_of
from jobledger.ledger.templates import filled
from jobledger.ledger.unique.keys import Wish, wish_for


class NamedLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that a job names, in the form for `CodeLimits.ensure`."""

    queue: str
    task: str
    limits: tuple[str, ...] = ()  #: by their names
    limits_in_code: tuple[Limit | str, ...] = ()  #: as code declares them
    own: tuple[str, ...] = ()  #: those of `limits` that the task's own code names


def new_job_id() -> str:
    """Return a UUIDv7: sortable by time of creation."""
    return str(uuid_utils.uuid7())


def identified(task: Kind, options: Options, text: bytes, inherited_tenant: str = "") -> Options:
    """Return the options; without an id they get the one that the task declares for this input.

    Raises: InvalidInputError.
    """
    template = options.id_template
    if not template or options.id is not None:
        return options
    options = with_tenant(task, options, text)
    made = filled("id", template, _keyed(task, options, text, options.tenant or inherited_tenant))
    return msgspec.structs.replace(options, id=made)


def with_tenant(task: Kind, options: Options, text: bytes) -> Options:
    """Return the options; without a tenant they get the one that the task declares for this input.

    Raises: InvalidInputError.
    """
    template = options.tenant_template
    if not template or options.tenant:
        return options
    tenant = filled("tenant", template, _keyed(task, options, text, ""))
    return msgspec.structs.replace(options, tenant=tenant)


def _keyed(task: Kind, options: Options, text: bytes, tenant: str) -> KeySource:
    order = Order(tenant=tenant, metadata=options.metadata)
    return KeySource(task.name, options.queue, order, InputArguments(task.signature.decode, text))


def plain_command(
    task: Kind, options: Options, job_id: str, text: bytes, notify: str, *, key: ValueKey | None = None
) -> Enqueue:
    """Return the command that begins a job with a small input, if it needs no further work of `command_of`.

    `key`: the key of the job's owner, which seals `text`.
    """
    ref = JobRef(queue=options.queue, job_id=job_id)
    order = options.order(msgspec.Raw(text), None, notify, "" if key is None else key.id)
    if key is not None and order.metadata:
        order = sealed_order(order, key)
    return Enqueue(ref=ref, task=task.name, order=order)


def command_of(
    task: Kind,
    options: Options,
    job_id: str,
    text: bytes,
    clock: Clock,
    *,
    stored: tuple[msgspec.Raw, PayloadRef | None] | None = None,
    notify: str = "",
    inherit: Callable[[Order], Order] | None = None,
    key: ValueKey | None = None,
) -> Enqueue:
    """Return the command that begins a job; `stored`: value and reference of the input in its order; None: the input.

    `key`: the key of the job's owner, which seals `stored`.

    Raises: InvalidInputError, InvalidTokenError, TaskDefinitionError.
    """
    if options.tenant_template:
        options = with_tenant(task, options, text)
    value, reference = (msgspec.Raw(text), None) if stored is None else stored
    order = options.order(value, reference, notify)
    if task.version or task.callbacks or task.deadline_s is not None:
        from jobledger.ledger.runs.nodes import callbacks_of  # noqa: PLC0415 - others need nothing of it

        on_end = callbacks_of(task, options.tenant) if task.callbacks else ()
        of_run = {"version": task.version, "on_end": on_end, "deadline_s": task.deadline_s}
        order = msgspec.structs.replace(order, **of_run)
    if inherit is not None:
        order = inherit(order)
    if options.declared or options.declared_queue is not None:
        arguments = InputArguments(task.signature.decode, text)
        job = KeySource(task.name, options.queue, order, arguments, None if key is None else key.index)
        order = with_limits(job, options.declared, options.declared_queue)
    if key is not None:
        order = sealed_order(order, key)
    run_at, delay_s = options.run_at, options.delay_s
    if options.debounce_s is not None:
        delay_s = options.debounce_s
    if delay_s is not None:
        run_at = moment_of(None, delay_s, clock.now())
    return Enqueue(
        ref=JobRef(queue=options.queue, job_id=job_id),
        task=task.name,
        run_at=run_at,
        order=order,
    )


def sealed_order(order: Order, key: ValueKey) -> Order:
    """Return an order whose input is sealed already with its owner's key named, and the metadata sealed."""
    sealed: dict[str, Any] = {"key": key.id}
    if order.metadata:
        sealed["metadata"] = seal_words(key, order.metadata)
    return msgspec.structs.replace(order, **sealed)


def limits_named(task: Kind, options: Options) -> list[NamedLimits]:
    """Return the limits that a job of a task and its callbacks name."""
    found = [
        _named(plain.name, chosen, chosen.limits)
        for plain, chosen in (callback.unpacked for _, callback in task.callbacks)
    ]
    if options.limits or options.declared or options.declared_queue is not None:
        found.append(_named(task.name, options, task.defaults.limits))
    return found


def _named(task: str, options: Options, own: tuple[str, ...]) -> NamedLimits:
    return NamedLimits(
        queue=options.queue,
        task=task,
        limits=options.limits,
        limits_in_code=options.limits_in_code,
        own=own,
    )


def wish_of(
    task: Kind,
    options: Options,
    command: Enqueue,
    text: bytes,
    clock: Clock,
    *,
    seals: ValueKey | None = None,
) -> Wish:
    """Return the wish of an enqueue of a unique job; `seals`: as in `wish_for`. Raises: as `wish_for`."""
    assert options.unique is not None, "only unique jobs have keys"
    return wish_for(
        task.signature,
        options.unique,
        command,
        text,
        now=clock.now(),
        debounce_s=options.debounce_s,
        max_wait_s=options.max_wait_s,
        by=options.by,
        seals=seals,
    )

"""Whose data a job holds, as its options say it or make it of the input. Pure."""

from __future__ import annotations

from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.limits.keys import InputArguments, KeySource
from jobledger.ledger.model.events import Order
from jobledger.ledger.options import Options
from jobledger.ledger.templates import filled


def owner_named(task: Kind, options: Options, text: bytes) -> str:
    """Return the owner that a job's options name, or that they make of its input; "" without one.

    Raises: InvalidInputError.
    """
    if "{" not in options.owner:
        return options.owner
    order = Order(tenant=options.tenant, metadata=options.metadata)
    arguments = InputArguments(task.signature.decode, text)
    return filled("owner", options.owner, KeySource(task.name, options.queue, order, arguments))

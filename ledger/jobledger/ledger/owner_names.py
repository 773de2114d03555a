"""The owner of a job's data, from its options or from a template and the input. Pure."""

from __future__ import annotations

from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.limits.keys import InputArguments, KeySource
from jobledger.ledger.model.events import Order
from jobledger.ledger.options import Options
from jobledger.ledger.templates import filled, owner_of_arguments


def owner_named(task: Kind, options: Options, text: bytes) -> str:
    """Return the owner in a job's options, with a template filled from the input; "" without one.

    Raises: InvalidInputError.
    """
    if "{" not in options.owner:
        return options.owner
    arguments = InputArguments(task.signature.decode, text)
    if found := owner_of_arguments(options.owner, arguments):
        return found
    order = Order(tenant=options.tenant, metadata=options.metadata)
    return filled("owner", options.owner, KeySource(task.name, options.queue, order, arguments))

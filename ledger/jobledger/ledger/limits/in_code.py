"""What the code of workers says of limits, beside what the ledger says: each worker's lease names it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from jobledger.ledger.model.limits.definition import Definition, Terms, terms_words
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.nats.leases import WorkerInfo


class CodeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as the code of a running worker has it."""

    worker: str
    terms: Terms


def limits_in_code(workers: Iterable[WorkerInfo]) -> dict[str, list[CodeLimit]]:
    """Return what the code of living workers says of each limit, that of the one that began last in front."""
    found: dict[str, list[CodeLimit]] = {}
    for worker in sorted(workers, key=lambda each: each.started_at, reverse=True):
        if not worker.stopped and worker.kind == "worker":
            for limit, terms in (worker.limits or {}).items():
                found.setdefault(limit, []).append(CodeLimit(worker=worker.worker, terms=terms))
    return found


def differing(limit: str, terms: Terms | None, in_code: Mapping[str, Sequence[CodeLimit]]) -> list[CodeLimit]:
    """Return the workers whose code has a limit, `name` or `name:key`, with terms other than `terms`, which hold."""
    return [each for each in in_code.get(limit, ()) if terms is not None and each.terms != terms]


def difference(definition: Definition | None, limit: str, wanted: Terms) -> str:
    """Return a sentence on how a limit's terms in force differ from the code's terms; "" where they do not.

    `limit`: `name`, or `name:key` where the key is the queue or the task whose code it is.
    """
    key = split(limit)[1]
    terms = None if definition is None else definition.of(key)
    if definition is None or terms is None or terms == wanted:
        return ""
    author = definition.author(key)
    who = f"{author.by} set it" if author.source == "operator" else f"the code of {author.by} has it"
    return f"limit {limit} is {terms_words(terms)}, as {who}; this code has {terms_words(wanted)}"

"""Limits in the code of workers, which each worker's lease names, compared with those in the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from jobledger.ledger.model.limits.definition import Definition, Terms, terms_words
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.nats.leases import WorkerInfo


class CodeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit in the code of a running worker."""

    worker: str
    terms: Terms


def limits_in_code(workers: Iterable[WorkerInfo]) -> dict[str, list[CodeLimit]]:
    """Return the terms of each limit in the code of living workers, those of the worker that began last first."""
    found: dict[str, list[CodeLimit]] = {}
    for worker in sorted(workers, key=lambda each: each.started_at, reverse=True):
        if not worker.stopped and worker.kind == "worker":
            for limit, terms in (worker.limits or {}).items():
                found.setdefault(limit, []).append(CodeLimit(worker=worker.worker, terms=terms))
    return found


def differing(limit: str, terms: Terms | None, in_code: Mapping[str, Sequence[CodeLimit]]) -> list[CodeLimit]:
    """Return the workers whose code has other terms of a limit, `name` or `name:key`, than `terms`, those in force."""
    return [each for each in in_code.get(limit, ()) if terms is not None and each.terms != terms]


def difference(definition: Definition | None, limit: str, wanted: Terms) -> str:
    """Return a sentence on how a limit's terms in force differ from the code's terms; "" where they do not.

    `limit`: `name`, or `name:key` if the key is the queue or the task of the code.
    """
    key = split(limit)[1]
    terms = None if definition is None else definition.of(key)
    if definition is None or terms is None or terms == wanted:
        return ""
    author = definition.author(key)
    who = f"{author.by} set it" if author.source == "operator" else f"the code of {author.by} has it"
    return f"limit {limit} is {terms_words(terms)}, as {who}; this code has {terms_words(wanted)}"

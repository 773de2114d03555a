"""Values that jobs have had for the keys of a search, and a sentence on values that no job has had."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.rights.authority import Principal
from jobledger.projections import JobFilter, Store
from jobledger.projections.search import AWAITS, STATE_GROUPS, Word

#: Keys whose values are kept of all queues and tasks together.
_OF_ALL: Final = frozenset({"error", "tenant", "limit"})
#: Keys whose values are all known, as long as there are not very many; each with its words in a sentence.
_NAMES: Final = {
    "task": "the task",
    "queue": "the queue",
    "tenant": "the tenant",
    "error": "an error of type",
}
_KNOWN_MAX: Final = 1_000
_BEGUN_MAX: Final = 8
_TENANTS: Final = (
    "WITH RECURSIVE each(name) AS (SELECT min(tenant) FROM jobs WHERE tenant >= ? AND tenant < ? AND tenant <> '' "
    "UNION ALL SELECT (SELECT min(tenant) FROM jobs WHERE tenant > name AND tenant < ? AND tenant <> '') FROM each "
    "WHERE name IS NOT NULL LIMIT 1000) SELECT name FROM each WHERE name IS NOT NULL"
)
_TENANT_BEYOND: Final = "\U0010ffff"  #: sorts behind every name of a tenant
_ERRORS: Final = (
    "SELECT error_type, sum(failed) + sum(dead_lettered) AS n FROM failures "
    "WHERE error_type NOT IN ('(other)', '(none)') GROUP BY error_type ORDER BY n DESC"
)
_TASKS: Final = "SELECT task, max(queue), sum(enqueued) FROM totals GROUP BY task ORDER BY 3 DESC"
_LIMITS: Final = (
    "SELECT CASE limit_key WHEN '' THEN name ELSE name || ':' || limit_key END FROM limits ORDER BY 1"
)
_META_OF: Final = (
    "FROM (SELECT metadata FROM jobs ORDER BY created_at DESC LIMIT ?) AS j, json_each(j.metadata) AS said"
)
_META: Final = f"SELECT DISTINCT said.key {_META_OF}"
_META_VALUES: Final = f"SELECT said.value, count(*) {_META_OF} WHERE said.key = ? GROUP BY 1 ORDER BY 2 DESC"
_META_LOOKED_AT: Final = 2_000  #: the newest jobs that are read for values
_KEYS_LOOKED_AT: Final = 500  #: the newest jobs that are read for keys, at each word

#: A value and a word on it.
Value = tuple[str, str]


def said_keys(store: Store, principal: Principal) -> list[str]:
    """Return the metadata keys of the newest jobs, as `meta.NAME`, to a principal that may read all payloads."""
    if not (principal.may("payloads") and principal.is_everywhere):
        return []
    return [f"meta.{name}" for (name,) in store.select(_META, (_KEYS_LOOKED_AT,))]


def known_values(key: str, begun: str, store: Store, principal: Principal) -> Iterator[Value]:
    """Yield the values of a key that `principal` may see; those of all jobs only if it may see all jobs.

    `begun`: the beginning of the value, since there could be very many.
    """
    if (key in _OF_ALL or key.startswith("meta.")) and not principal.is_everywhere:
        return
    if key.startswith("meta."):
        found = store.select(_META_VALUES, (_META_LOOKED_AT, key.removeprefix("meta.")))
        yield from ((str(value), f"{count:,} of the newest") for value, count in found)
        return
    yield from _VALUES.get(key, _none)(begun, store, principal)


def unknown_values(words: Sequence[Word], store: Store, principal: Principal | None = None) -> list[str]:
    """Say which values no job has ever had, and what comes close to them.

    `principal`: the asker; None: one who may see all. A principal who may not see all is told nothing.
    """
    if principal is not None and not principal.is_everywhere:
        return []
    found: list[str] = []
    for word in words:
        if word.key in _NAMES and word.value:
            known = [value for value, _ in _VALUES[word.key]("", store, principal)]
            if word.value not in known and len(known) < _KNOWN_MAX:
                close = difflib.get_close_matches(word.value, known, 1, 0.5)
                near = f": did you mean {word.key}:{close[0]}?" if close else ""
                found.append(f"no job has ever had {_NAMES[word.key]} {word.value}{near}")
    return found


def begun_jobs(text: str, store: Store, principal: Principal) -> list[tuple[str, str]]:
    """Return the newest visible jobs whose ids begin with a text, as queue and id; a whole id comes first."""
    if not text:
        return []
    named = [(each.queue, each.job_id) for each in store.find(text) if each.job_id == text]
    whole = [
        each
        for each in named
        if (row := store.job(*each)) is not None and principal.may("view", row.queue, row.task)
    ]
    seen = JobFilter(id_prefix=text, visible_queues=principal.queues, visible_tasks=principal.tasks)
    rows = [(row.queue, row.id) for row in store.job_page(seen, limit=_BEGUN_MAX).items]
    return list(dict.fromkeys([*whole, *rows]))


def _none(*_: object) -> Iterator[Value]:
    return iter(())


def _plain(*values: str) -> Callable[..., Iterator[Value]]:
    return lambda *_: ((each, "") for each in values)


def _states(*_: object) -> Iterator[Value]:
    yield from ((each, "") for each in JobState)
    yield from ((each, ", ".join(states)) for each, states in STATE_GROUPS.items())


def _queues(_: str, store: Store, principal: Principal | None) -> Iterator[Value]:
    for queue in dict.fromkeys(each.queue for each in store.queues()):
        if principal is None or principal.may("view", queue):
            yield queue, ""


def _tasks(_: str, store: Store, principal: Principal | None) -> Iterator[Value]:
    for task, queue, count in store.select(_TASKS):
        if principal is None or principal.may("view", queue, task):
            yield task, f"{count:,} jobs"


def _errors(_: str, store: Store, __: object) -> Iterator[Value]:
    return ((kind, f"{count:,} failures") for kind, count in store.select(_ERRORS))


def _tenants(begun: str, store: Store, _: object) -> Iterator[Value]:
    beyond = f"{begun}{_TENANT_BEYOND}"
    return ((name, "") for (name,) in store.select(_TENANTS, (begun, beyond, beyond)))


def _limits(_: str, store: Store, __: object) -> Iterator[Value]:
    return ((name, "") for (name,) in store.select(_LIMITS))


def _ids(begun: str, store: Store, principal: Principal) -> Iterator[Value]:
    return ((name, queue) for queue, name in begun_jobs(begun, store, principal))


_VALUES: Final[Mapping[str, Callable[..., Iterator[Value]]]] = {
    "state": _states,
    "queue": _queues,
    "task": _tasks,
    "error": _errors,
    "tenant": _tenants,
    "limit": _limits,
    "since": _plain("15m", "1h", "6h", "24h", "7d"),
    "until": _plain("15m", "1h", "6h", "24h", "7d"),
    "awaits": _plain(*AWAITS),
    "id": _ids,
    "run": _ids,
}

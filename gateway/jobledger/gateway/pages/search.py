"""What somebody types into the field for finding jobs: words and `key:value`, as a filter, as chips, and what could follow.

`tenant:acme state:dead error:CardDeclined task:charge since:2h run:import-acme meta.region=eu invoice=i22`. A word without
a key is an id, its beginning or its end, else a text that is looked for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from jobledger.gateway.pages.words import STATE_TOKENS
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.times import time_text
from jobledger.projections import JobFilter, SaidFilter, Store

TEXT_MAX: Final = 400
_WORD: Final = re.compile(
    r'(?P<key>(?:[a-z]{2,11}|(?:meta|input)\.[\w./~-]{1,100})(?=[:=])|[\w./~-]{1,100}(?==))?(?P<mark>[:=])?(?P<value>"[^"]*"?|\S+)?'
)
_SPAN: Final = re.compile(r"(\d{1,5})(m|min|h|d|w)")
_SPANS: Final = {"m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TIME: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_GROUPS: Final = {
    "open": ("queued", "running", "retry_wait", "held", "scheduled", "paused"),
    "failing": ("dead_lettered", "retry_wait"),
}
#: Keys, and what each is for; in the order in which they are offered.
KEYS: Final = {
    "state": "waiting, running, retrying, held, dead, open …",
    "task": "what it runs",
    "queue": "where it waits",
    "tenant": "whom it belongs to",
    "error": "type of its newest error",
    "since": "2h, 30m, 7d, 16:28 or a date",
    "until": "the same: enqueued before",
    "id": "an id, its beginning, or …its end",
    "run": "the jobs of a run",
    "limit": "a limit, or limit:key, that it names",
    "awaits": "what a run waits for: signal, children, sleep",
    "cause": "fingerprint of a dead letter",
    "by": "who asked for it",
    "batch": "the batch it is part of",
    "trace": "the trace it is part of",
    "text": "words in id, input, result or error",
}
_ITEMS_MAX: Final = 9
_BEGUN_MAX: Final = 8
_JOBS_MAX: Final = 5
#: Keys whose values are kept of all queues and tasks together.
_OF_ALL: Final = frozenset({"error", "tenant", "limit"})
#: Keys whose values are all known, as long as there are not very many.
_NAMES: Final = {
    "task": "the task",
    "queue": "the queue",
    "tenant": "the tenant",
    "error": "an error of type",
}
_KNOWN_MAX: Final = 1_000


class Word(NamedTuple):
    """One word of what was typed."""

    key: str  #: "" of a word without one
    value: str
    text: str  #: as it was typed


class Chip(NamedTuple):
    """One condition, and what is left to ask for without it."""

    key: str
    value: str
    without: str


class Asked(NamedTuple):
    """What somebody asked for."""

    words: tuple[Word, ...]
    chosen: JobFilter
    problems: tuple[str, ...]  #: what was not understood, in sentences
    note: str  #: how a word without a key was read

    def chips(self) -> list[Chip]:
        """Return each condition with the rest of the question."""
        texts = [word.text for word in self.words]
        return [
            Chip(word.key or "find", word.value, " ".join(texts[:place] + texts[place + 1 :]))
            for place, word in enumerate(self.words)
        ]


class Item(NamedTuple):
    """One thing that could follow."""

    group: str
    label: str
    hint: str
    text: str = ""  #: what the field holds then
    job: tuple[str, str] | None = None  #: queue and id of a job to open


def read_words(text: str) -> tuple[Word, ...]:
    """Return the words of what was typed."""
    found: list[Word] = []
    for match in _WORD.finditer(text[:TEXT_MAX]):
        if not match[0]:
            continue
        key, mark, value = match["key"] or "", match["mark"] or "", (match["value"] or "").strip('"')
        if mark == "=" and key and not key.startswith(("meta.", "input.")):
            key = f"input.{key}"
        found.append(Word(key, value, match[0]) if key and mark else Word("", match[0].strip('"'), match[0]))
    return tuple(found)


def ask(text: str, store: Store, principal: Principal, now: datetime, *, states: Sequence[str] = ()) -> Asked:
    """Return what was typed as a filter of what somebody may see. Raises: ProblemError, ProjectionConfigError."""
    words = read_words(text)
    given: dict[str, Any] = {"states": tuple(states)}
    said: dict[str, Any] = {}
    problems: list[str] = []
    loose: list[str] = []
    for word in words:
        if not word.key:
            loose.append(word.value)
        elif word.key.startswith("meta."):
            said["metadata"] = (*said.get("metadata", ()), (word.key[5:], word.value))
        elif word.key.startswith("input."):
            given["input"] = (*given.get("input", ()), (word.key[6:], word.value))
        elif word.key not in KEYS:
            close = difflib.get_close_matches(word.key, KEYS, 1)
            problems.append(
                f"nothing is called {word.key}:" + (f" did you mean {close[0]}:?" if close else "")
            )
        elif word.value:
            problem = _take(word, given, said, now)
            problems += [problem] if problem else []
    problems += _unknown(words, store, principal)
    note = _loose(" ".join(loose), given, store) if loose else ""
    chosen = JobFilter(
        said=SaidFilter(**said), visible_queues=principal.queues, visible_tasks=principal.tasks, **given
    )
    if chosen.reads_payloads:
        principal.require("payloads")
    return Asked(words, chosen, tuple(problems), note)


def _unknown(words: Sequence[Word], store: Store, principal: Principal) -> list[str]:
    """Say which values nobody ever heard of, and what comes close to them."""
    found: list[str] = []
    for word in words:
        if word.key in _NAMES and word.value and principal.is_everywhere:
            known = [value for value, _ in _values(word.key, "", store, principal)]
            if word.value not in known and len(known) < _KNOWN_MAX:
                close = difflib.get_close_matches(word.value, known, 1, 0.5)
                found.append(
                    f"no job has ever had {_NAMES[word.key]} {word.value}"
                    + (f": did you mean {word.key}:{close[0]}?" if close else "")
                )
    return found


def _take(  # noqa: C901, PLR0912 - one case a key
    word: Word, given: dict[str, Any], said: dict[str, Any], now: datetime
) -> str:
    """Put one condition into the filter; return what is wrong with it, "" where nothing is."""
    value = word.value
    match word.key:
        case "state":
            names = _GROUPS.get(value) or (
                (STATE_TOKENS.get(value, value),) if value in {*STATE_TOKENS, *STATE_TOKENS.values()} else ()
            )
            if not names:
                return f"no state is called {value}: {', '.join(dict.fromkeys(STATE_TOKENS))}, open, failing"
            given["states"] = tuple(dict.fromkeys((*given["states"], *names)))
        case "since" | "until":
            at = moment_of(value, now)
            if at is None:
                return f"{word.key}:{value} is no time: write 2h, 30m, 7d, 16:28 or 2026-01-31"
            given[word.key] = time_text(at)
        case "id":
            _id(value, given)
        case "task" | "queue" | "batch" | "text" | "run":
            given[word.key] = value.rpartition("/")[2] if word.key == "run" else value
        case "error":
            given["error_type"] = value
        case "cause":
            given["fingerprints"] = (*given.get("fingerprints", ()), value)
        case "awaits":
            given["awaiting"] = value
        case "trace":
            given["trace_id"] = value
        case "tenant":
            said["tenant"] = value
        case "limit":
            said["limited_by"] = value
        case _:  # by
            said["created_by"] = value
    return ""


def _id(value: str, given: dict[str, Any]) -> None:
    begin, gap, end = value.replace("...", "…").replace("*", "…").partition("…")
    if begin:
        given["id_prefix"] = begin
    if end or (gap and not begin):
        given["id_suffix"] = end


def _loose(text: str, given: dict[str, Any], store: Store) -> str:
    """Read words without a key: as an id where one begins so, else as a text; return how they were read."""
    if any(mark in text for mark in ("…", "...", "*")) and " " not in text:
        _id(text, given)
        return "ids with this beginning and end"
    if " " not in text and "id_prefix" not in given and store.find(text):
        given["id_prefix"] = text
        return f"ids that begin with {text}"
    given["text"] = text
    return f"“{text}” in ids, inputs, results, errors and metadata"


def moment_of(text: str, now: datetime) -> datetime | None:
    """Return a moment that somebody typed: how long ago, a time of the day, or a date; None where it is none."""
    span, clock = _SPAN.fullmatch(text), _TIME.fullmatch(text)
    if span is not None:
        return now - timedelta(seconds=int(span[1]) * _SPANS[span[2]])
    try:
        if clock is not None:
            found = now.replace(
                hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0
            )
            return found if found <= now else found - timedelta(days=1)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def shown_moment(text: str, now: datetime) -> datetime | None:
    """Return the moment that somebody typed in words that mean another one later, as `2h`; None for a whole date."""
    return moment_of(text, now) if _SPAN.fullmatch(text) or _TIME.fullmatch(text) else None


def exact(text: str, store: Store, principal: Principal) -> tuple[str, str] | None:
    """Return the one job whose whole id was typed, as queue and id; None where it is not exactly one that is seen."""
    words = read_words(text)
    if len(words) != 1 or words[0].key not in {"", "id"}:
        return None
    queue, slash, name = words[0].value.rpartition("/")
    seen = [
        each for each in _begun(name, store, principal) if each[1] == name and (not slash or each[0] == queue)
    ]
    return seen[0] if len(seen) == 1 else None


def _begun(text: str, store: Store, principal: Principal) -> list[tuple[str, str]]:
    """Return the newest jobs that somebody may see and whose ids begin so, as queue and id; a whole id comes first."""
    if not text:
        return []
    named = [(each.queue, each.job_id) for each in store.find(text) if each.job_id == text]
    seen = JobFilter(id_prefix=text, visible_queues=principal.queues, visible_tasks=principal.tasks)
    rows = [(row.queue, row.id) for row in store.job_page(seen, limit=_BEGUN_MAX).items]
    whole = [
        each
        for each in named
        if (row := store.job(*each)) is not None and principal.may("view", row.queue, row.task)
    ]
    return list(dict.fromkeys([*whole, *rows]))


# --- What could follow.

_TENANTS: Final = (
    "WITH RECURSIVE each(name) AS (SELECT min(tenant) FROM jobs WHERE tenant >= ? AND tenant < ? AND tenant <> '' UNION ALL "
    "SELECT (SELECT min(tenant) FROM jobs WHERE tenant > name AND tenant < ? AND tenant <> '') FROM each WHERE name IS NOT NULL LIMIT 1000) "
    "SELECT name FROM each WHERE name IS NOT NULL"
)
_ERRORS: Final = "SELECT error_type, sum(failed) + sum(dead_lettered) AS n FROM failures WHERE error_type NOT IN ('(other)', '(none)') GROUP BY error_type ORDER BY n DESC"
_TASKS: Final = "SELECT task, max(queue), sum(enqueued) FROM totals GROUP BY task ORDER BY 3 DESC"
_LIMITS: Final = (
    "SELECT CASE limit_key WHEN '' THEN name ELSE name || ':' || limit_key END, '' FROM limits ORDER BY 1"
)
_META: Final = "SELECT DISTINCT said.key FROM (SELECT metadata FROM jobs ORDER BY created_at DESC LIMIT 500) AS j, json_each(j.metadata) AS said"
_META_VALUES: Final = "SELECT said.value, count(*) FROM (SELECT metadata FROM jobs ORDER BY created_at DESC LIMIT 2000) AS j, json_each(j.metadata) AS said WHERE said.key = ? GROUP BY 1 ORDER BY 2 DESC"


def suggest(text: str, store: Store, principal: Principal) -> list[Item]:
    """Return what could follow what was typed so far: values of a key that was begun, ids, names, keys."""
    before, last = (text[: text.rfind(" ") + 1], text[text.rfind(" ") + 1 :])
    words = read_words(last)
    word = words[-1] if words else Word("", "", "")
    if word.key:
        rows = _fitting(word.key, word.value, store, principal)
        key = word.key.removeprefix("input.") if "=" in last and not last.startswith("input.") else word.key
        mark = "=" if "=" in last else ":"
        return [
            Item(word.key, f"{key}{mark}{value}", hint, f"{before}{key}{mark}{_quoted(value)} ")
            for value, hint in rows[:_ITEMS_MAX]
        ]
    found = _named(before, word.value, store, principal) if word.value else []
    return [*found, *_conditions(before, word.value, store, principal)][: _ITEMS_MAX + 3]


def _fitting(key: str, value: str, store: Store, principal: Principal) -> list[tuple[str, str]]:
    """Return the values of a key that what was typed is a part of."""
    return [each for each in _values(key, value, store, principal) if value.lower() in each[0].lower()]


def _named(before: str, value: str, store: Store, principal: Principal) -> list[Item]:
    """Return jobs and values that a word without a key may mean."""
    jobs = _begun(value, store, principal) if len(value) > 1 else []
    found: list[Item] = []
    if len(jobs) > _JOBS_MAX:
        found.append(Item("Jobs", f"id:{value}…", "all that begin so", f"{before}id:{value}… "))
    found += [Item("Jobs", each[1], each[0], job=each) for each in jobs[:_JOBS_MAX]]
    for key in ("task", "queue", "tenant", "error"):
        found += [
            Item("Values", f"{key}:{name}", hint, f"{before}{key}:{_quoted(name)} ")
            for name, hint in _fitting(key, value, store, principal)[:3]
        ]
    return found


def _conditions(before: str, value: str, store: Store, principal: Principal) -> list[Item]:
    """Return the keys that begin with a word, or else that it is looked for as a text."""
    may_see = principal.may("payloads")
    said = store.select(_META) if may_see and principal.is_everywhere else []
    begun = [key for key in (*KEYS, *(f"meta.{key}" for (key,) in said)) if key.startswith(value)]
    if value and not begun and may_see:
        text = f"text:{_quoted(value)}"
        return [Item("Conditions", text, KEYS["text"], f"{before}{text} ")]
    named = ((key, f"{key}{'=' if '.' in key else ':'}") for key in begun)
    return [
        Item("Conditions", text, KEYS.get(key, "what was said of it"), f"{before}{text}")
        for key, text in named
    ]


def _quoted(value: str) -> str:
    return f'"{value}"' if " " in value else value


def _values(key: str, begun: str, store: Store, principal: Principal) -> Iterator[tuple[str, str]]:
    """Yield the values of a key that somebody may know of, with a word on each: of all jobs only who may see all of them."""
    select = store.select
    if key in _OF_ALL and not principal.is_everywhere:
        return
    if key.startswith("meta."):
        if not principal.is_everywhere:
            return
        yield from (
            (str(value), f"{count:,} of the newest") for value, count in select(_META_VALUES, (key[5:],))
        )
        return
    values: Mapping[str, Callable[[], Sequence[tuple[str, str]]]] = {
        "state": lambda: [
            *((each, "") for each in dict.fromkeys(STATE_TOKENS)),
            ("open", "whatever has not ended"),
            ("failing", "dead or retrying"),
        ],
        "queue": lambda: [
            (row, "")
            for row in dict.fromkeys(each.queue for each in store.queues())
            if principal.may("view", row)
        ],
        "task": lambda: [
            (task, f"{count:,} jobs")
            for task, queue, count in select(_TASKS)
            if principal.may("view", queue, task)
        ],
        "error": lambda: [(kind, f"{count:,} failures") for kind, count in select(_ERRORS)],
        "tenant": lambda: [(name, "") for (name,) in select(_TENANTS, (begun, f"{begun}~", f"{begun}~"))],
        "limit": lambda: [(name, "") for name, _ in select(_LIMITS)],
        "since": lambda: [(each, "") for each in ("15m", "1h", "6h", "24h", "7d")],
        "until": lambda: [(each, "") for each in ("15m", "1h", "6h", "24h", "7d")],
        "awaits": lambda: [(each, "") for each in ("signal", "children", "sleep", "retry", "operator")],
        "id": lambda: [(name, queue) for queue, name in _begun(begun, store, principal)],
        "run": lambda: [(name, queue) for queue, name in _begun(begun, store, principal)],
    }
    yield from values.get(key, list)()


def filter_text(pairs: Sequence[tuple[str, str]]) -> str:
    """Return conditions as somebody would type them."""
    return " ".join(f"{key}{'=' if '.' in key else ':'}{_quoted(value)}" for key, value in pairs)

r"""The grammar of searches for jobs: `tenant:acme state:dead error:CardDeclined since:2h meta.region=eu invoice=i22`.

One grammar for pages, commands and the API. A word is `KEY:VALUE` with one of `KEYS`, `meta.NAME=VALUE`, or
`FIELD=VALUE` of the input. Quotes hold blanks and marks together, `\"` is a quote in them. Words without a key are an id
or its beginning, with `…` or `*` beginning and end of an id, else a text. All conditions must hold; if `state:` or
`cause:` occurs several times, one of them. Pure: no ledger is read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from jobledger.ledger.model.errors import InvalidError
from jobledger.ledger.model.job import OPEN_STATES, JobState
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import time_text
from jobledger.ledger.model.trace import trace_id
from jobledger.ledger.model.written_times import read_time
from jobledger.projections.errors import ProjectionConfigError
from jobledger.projections.filters import JobFilter, SaidFilter

TEXT_MAX: Final = 400  #: characters of a search
PAIRS_MAX: Final = 10  #: conditions on the input, and on the metadata: each is checked in every row
#: Words for several states.
STATE_GROUPS: Final[Mapping[str, tuple[JobState, ...]]] = {
    "open": OPEN_STATES,
    "failing": (JobState.DEAD_LETTERED, JobState.RETRY_WAIT),
}
#: What a run can wait for.
AWAITS: Final = ("signal", "children", "sleep", "retry", "step", "operator")
_TIMES: Final = "2h, 30m, 7d, 16:28 or 2026-01-31"


class Key(NamedTuple):
    """One key of the grammar."""

    what: str  #: its meaning in a few words
    example: str  #: example of a value
    field: str = ""  #: field of `JobFilter`; "": several fields, or none alone
    said: str = ""  #: field of its `SaidFilter`


#: Keys in the order in which they are offered.
KEYS: Final[Mapping[str, Key]] = {
    "state": Key("queued, running, waiting, open …, or how one begins", "dead", "states"),
    "task": Key("the function that it runs", "app.charge", "task"),
    "queue": Key("where it waits", "billing", "queue"),
    "tenant": Key("whom it belongs to", "acme", said="tenant"),
    "owner": Key("whose data it holds", "person:17", said="owner"),
    "error": Key("type of its newest error", "CardDeclined", "error_type"),
    "since": Key(f"enqueued then or later: {_TIMES}", "2h", "since"),
    "until": Key(f"enqueued before: {_TIMES}", "16:28", "until"),
    "id": Key("an id, its beginning, or with … or * beginning and end", "charge-…-i22"),
    "run": Key("the jobs of a run, by its id", "import-7", "run"),
    "limit": Key("a limit that it names, with or without a key", "smtp:acme", said="limited_by"),
    "awaits": Key(f"what a run waits for: {', '.join(AWAITS)}", "signal", "awaiting"),
    "cause": Key("fingerprint of a dead letter, or its beginning", "678b01", "fingerprints"),
    "by": Key("who asked for it", "user:ann", said="created_by"),
    "batch": Key("the batch that it is part of", "may", "batch"),
    "correlation": Key("the first cause that it belongs to", "order-7", said="correlation"),
    "trace": Key("the trace that it is part of, by its id or a traceparent", f"{'4bf92f35' * 4}", "trace_id"),
    "text": Key("words in id, input, result, error or metadata", "card expired", "text"),
}

_WORD: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[^\s"])+', re.DOTALL)
_PIECE: Final = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)(?:"|\\?\Z)|(?P<bare>[^\s"]+)', re.DOTALL)
_MARK: Final = re.compile(r"[:=]")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
#: The form of a word that is most likely meant as a key, even if there is no key of this name.
_LIKE_KEY: Final = re.compile(r"[a-z_]{2,20}")
_OF_PAIRS: Final = ("meta.", "input.")
_PLAIN: Final = re.compile(r"[\w/@+-]+(?:\.[\w/@+-]+)*")
_PARTED: Final = re.compile(r'[\s":=]')
_WHOLE: Final = re.compile(r'[^\s"]+')
_HEX: Final = re.compile(r"[0-9a-f]{1,12}")
_TRACE: Final = re.compile(r"[0-9a-f]{32}")


class Word(NamedTuple):
    """One word of a typed search."""

    key: str  #: one of `KEYS`, an unknown key, `meta.NAME`, `input.FIELD`; "": a word without a key
    value: str
    text: str  #: the word as typed
    is_quoted: bool = False  #: True if its value, or a part of it, is in quotes


class Search(NamedTuple):
    """A typed search, and the part of it that was understood."""

    words: tuple[Word, ...]
    chosen: JobFilter  #: filter of the words that were understood
    problems: tuple[str, ...]  #: a sentence on each word that was not understood


def parse_search(text: str, now: datetime) -> JobFilter:
    """Return a typed search as a filter: `tenant:acme state:dead since:2h`. `now`: the time from which `2h` is counted.

    Raises: ProjectionConfigError, a sentence on the first word that was not understood.
    """
    found = read_search(text, now)
    if found.problems:
        raise ProjectionConfigError(found.problems[0])
    return found.chosen


def read_search(text: str, now: datetime) -> Search:
    """Return the understood conditions of a text, and a problem for each other one."""
    if len(text) > TEXT_MAX:
        problem = f"a search has at most {TEXT_MAX} characters, got {len(text)}: leave conditions out"
        return Search((), JobFilter(), (problem,))
    words, chosen, problems = read_words(text), JobFilter(), list[str]()
    for word in words:
        try:
            chosen = _with(chosen, word, now)
        except (ProjectionConfigError, InvalidError) as error:
            problems.append(str(error))
    return Search(words, chosen, tuple(problems))


def read_words(text: str) -> tuple[Word, ...]:
    """Return the words of a typed search."""
    return tuple(_word(match[0]) for match in _WORD.finditer(text))


def _word(text: str) -> Word:
    key, mark, value, is_quoted = "", "", "", False
    for piece in _PIECE.finditer(text):
        bare = piece["bare"]
        if bare is None:
            value += _ESCAPED.sub(r"\1", piece["quoted"])
            is_quoted = True
            continue
        if not mark:
            for found in _MARK.finditer(bare):
                name = _key(value + bare[: found.start()], found[0])
                if name:
                    key, mark, value, is_quoted, bare = name, found[0], "", False, bare[found.end() :]
                    break
        value += bare
    return Word(key, value, text, is_quoted)


def _key(name: str, mark: str) -> str:
    """Return the key before a mark, "" if there is none."""
    if name.startswith(_OF_PAIRS):
        return name
    if mark == "=":
        return name and f"input.{name}"
    if name.lower() in KEYS:
        return name.lower()
    return name if _LIKE_KEY.fullmatch(name) else ""


def _with(chosen: JobFilter, word: Word, now: datetime) -> JobFilter:
    """Return the filter with one condition more. Raises: ProjectionConfigError, InvalidError."""
    if not word.key:
        return _with_loose(chosen, word)
    more = _condition(word, now)
    if more.states or more.fingerprints:  # one of several values must hold, so each widens the choice
        return msgspec.structs.replace(
            chosen,
            states=tuple(dict.fromkeys((*chosen.states, *more.states))),
            fingerprints=tuple(dict.fromkeys((*chosen.fingerprints, *more.fingerprints))),
        )
    try:
        both = chosen.both(more)
    except ProjectionConfigError as error:
        raise ProjectionConfigError(f"{word.key}: is given twice: leave one of them out") from error
    if max(len(both.input), len(both.said.metadata)) > PAIRS_MAX:
        raise ProjectionConfigError(
            f"a search looks at {PAIRS_MAX} fields of the input or the metadata at most: leave {_shown(word.text)} out"
        )
    return both


def _with_loose(chosen: JobFilter, word: Word) -> JobFilter:
    if not word.is_quoted and any(mark in word.value for mark in ("…", "...", "*")):
        return chosen.both(_of_id(word.value))
    words = word.value if chosen.words is None else f"{chosen.words} {word.value}"
    return msgspec.structs.replace(chosen, words=words)


def _condition(word: Word, now: datetime) -> JobFilter:
    """Return one condition as a filter. Raises: ProjectionConfigError, InvalidError."""
    if word.key.startswith("meta."):
        return JobFilter(said=SaidFilter(metadata=((_named(word, "meta."), word.value),)))
    if word.key.startswith("input."):
        return JobFilter(input=((_named(word, "input."), word.value),))
    known = KEYS.get(word.key)
    if known is None:
        raise ProjectionConfigError(
            f"there is no key {word.key}:{_nearest(word.key, KEYS, ':')}; put it in quotes to look for it as text"
        )
    if not word.value:
        raise ProjectionConfigError(f"{word.key}: has no value: write {pair(word.key, known.example)}")
    value: Any = _READ[word.key](word.value, now) if word.key in _READ else word.value
    if isinstance(value, JobFilter):
        return value
    said: dict[str, Any] = {known.said: value} if known.said else {}
    of_job: dict[str, Any] = {known.field: value} if known.field else {}
    return JobFilter(said=SaidFilter(**said), **of_job)


def _shown(value: str) -> str:
    return value[:60].encode(errors="backslashreplace").decode()


def _named(word: Word, begin: str) -> str:
    name = word.key.removeprefix(begin)
    if not name:
        raise ProjectionConfigError(f"{begin} has no name: write {begin}region=eu")
    return name


def _nearest(name: str, known: Iterable[str], mark: str = "") -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}{mark}?)" if close else ""


# --- The values of keys.


def _states(value: str, _: datetime) -> tuple[str, ...]:
    token = value.lower()
    words = (*map(str, JobState), *STATE_GROUPS)
    begun = [word for word in words if word.startswith(token)]
    found = [token] if token in begun else begun
    if not found:
        near = _nearest(token, (*words, "dead"))
        raise ProjectionConfigError(f"no state is called {_shown(value)}{near}: {', '.join(words)}")
    if len(found) > 1:
        raise ProjectionConfigError(f"state:{_shown(value)} may be {' or '.join(found)}: write one of them")
    return tuple(map(str, STATE_GROUPS.get(found[0], found)))


def _time(name: str) -> Callable[[str, datetime], str]:
    def read(value: str, now: datetime) -> str:
        try:
            at = read_time(value, now)
        except OverflowError:
            at = None
        if at is None:
            raise ProjectionConfigError(f"{name}:{_shown(value)} is no time: write {_TIMES}")
        return time_text(at)

    return read


def _of_id(value: str, _: datetime | None = None) -> JobFilter:
    begin, gap, end = value.replace("...", "…").replace("*", "…").partition("…")
    if not (begin or end):
        raise ProjectionConfigError(
            f"id:{_shown(value)} names no job: write the beginning of an id, or its end"
        )
    return JobFilter(id_prefix=begin or None, id_suffix=end if gap and end else None)


def _awaits(value: str, _: datetime) -> str:
    if value not in AWAITS:
        near = _nearest(value, dict.fromkeys(AWAITS))
        raise ProjectionConfigError(f"no run awaits {_shown(value)}{near}: {', '.join(AWAITS)}")
    return value


def _cause(value: str, _: datetime) -> tuple[str, ...]:
    if _HEX.fullmatch(value) is None:
        raise ProjectionConfigError(
            f"cause:{_shown(value)} is no fingerprint: up to 12 hex digits, as `dlq list` shows them"
        )
    return (value,)


def _trace(value: str, _: datetime) -> str:
    found = (trace_id(value) or value).lower()
    if _TRACE.fullmatch(found) is None:
        raise ProjectionConfigError(
            f"trace:{_shown(value)} is no trace: 32 hexadecimal digits, or a whole traceparent"
        )
    return found


_READ: Final[Mapping[str, Callable[[str, datetime], Any]]] = {
    "state": _states,
    "since": _time("since"),
    "until": _time("until"),
    "id": _of_id,
    "queue": lambda value, _: check_token("queue", value),
    "run": lambda value, _: value.rpartition("/")[2] or value,
    "awaits": _awaits,
    "cause": _cause,
    "trace": _trace,
}


# --- The other way.


def search_text(chosen: JobFilter) -> str:
    """Return a filter as a person would type it: `parse_search` makes the same filter of it, without visibility."""
    return " ".join(_typed(chosen))


def _typed(chosen: JobFilter) -> Iterator[str]:
    for name, key in KEYS.items():
        for each in _values(chosen, key):
            yield pair(name, each)
    if chosen.id_prefix is not None or chosen.id_suffix is not None:
        end = "" if chosen.id_suffix is None else f"…{chosen.id_suffix}"
        yield pair("id", f"{chosen.id_prefix or ''}{end}")
    for field, value in chosen.input:
        yield pair(field if not field.startswith(_OF_PAIRS) else f"input.{field}", value, "=")
    for name, value in chosen.said.metadata:
        yield pair(f"meta.{name}", value, "=")
    if chosen.words is not None:
        is_plain = _PLAIN.fullmatch(chosen.words) is not None
        yield chosen.words if is_plain else _in_quotes(chosen.words)


def _values(chosen: JobFilter, key: Key) -> tuple[str, ...]:
    value: str | tuple[str, ...] | None = None
    if key.said or key.field:
        value = getattr(chosen.said, key.said) if key.said else getattr(chosen, key.field)
    return (value,) if isinstance(value, str) else value or ()


def pair(key: str, value: str, mark: str = ":") -> str:
    """Return one condition as a person types it, in quotes if it needs them."""
    name = _in_quotes(key) if _PARTED.search(key) else key
    return f"{name}{mark}{value if _WHOLE.fullmatch(value) else _in_quotes(value)}"


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

"""Texts of values on pages: numbers, spans, moments, states, JSON in colours. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final, cast

import msgspec
from markupsafe import Markup, escape

from jobledger.admin.amounts import duration
from jobledger.admin.diagnoses import Noun
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.times import as_utc

#: Reasons of a run's wait, for people.
_AWAITS: Final = {
    "signal": "Waits for a signal",
    "children": "Waits for jobs",
    "sleep": "Sleeps",
    "retry": "Waits to retry",
}
#: The class that carries the colour of a state, of an attempt's end, of a step or of an event.
STYLES: Final = {
    "scheduled": "t-scheduled",
    "held": "t-held",
    "queued": "t-queued",
    "granted": "t-queued",
    "running": "t-running",
    "started": "t-running",
    "open": "t-running",
    "step_started": "t-running",
    "retry_wait": "t-waiting",
    "waiting": "t-waiting",
    "paused": "t-waiting",
    "snoozed": "t-waiting",
    "interrupted": "t-waiting",
    "completed": "t-completed",
    "step_completed": "t-completed",
    "failed": "t-dead",
    "step_failed": "t-dead",
    "dead_lettered": "t-dead",
    "cancel_requested": "t-dead",
    "diverged": "t-dead",
    "lost": "t-lost",
    "fenced": "t-lost",
}
_OTHER: Final = "t-ended"

UNKNOWN: Final = "\N{EN DASH}"
JSON_SHOWN_MAX: Final = 20_000  #: characters of a value that a page shows
_TOKEN: Final = re.compile(
    r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
)
_CODE: Final = re.compile(r"`([^`]+)`")
_ID_SHOWN: Final = 18
_UNITS_S: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def style_of(state: str) -> str:
    """Return the class that carries a state's colour."""
    return STYLES.get(state, _OTHER)


def said(what: str, event: str) -> str:
    """Return the text of an event without its name, which the page shows beside it."""
    rest = what.removeprefix(event.replace("_", " "))
    return rest.removeprefix(":").strip() or what


def waits_word(awaiting: str | None) -> str:
    """Return the reason of a run's wait, in a few words."""
    return _AWAITS.get((awaiting or "").split(" ")[0], "Waiting")


def pattern(text: str) -> Markup:
    """Return a message with a mark in place of the parts that differ from job to job."""
    return Markup(str(escape(text)).replace("#", '<i class="any">…</i>'))  # noqa: S704 - it was escaped


def without_error(sentence: str, error: ErrorInfo | None) -> str:
    """Return the reason of a job's state without its error, which the page shows below."""
    return sentence if error is None else sentence.replace(f" ({error.type}: {error.message[:200]})", "")


def count(value: float | None) -> str:
    """Return a number with separated thousands, with a fraction only if it is small; a dash if it is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"  # noqa: PLR2004


def took(seconds: float | None) -> str:
    """Return a span, or a dash if it is not known."""
    return UNKNOWN if seconds is None else duration(seconds)


def percent(share: float | None) -> str:
    """Return a share of 1 as percent."""
    if share is None:
        return UNKNOWN
    return f"{100 * share:.1f} %" if 0 < share < 0.995 else f"{100 * share:.0f} %"  # noqa: PLR2004


def moment(at: datetime | str) -> datetime:
    """Return the time of a text in rows."""
    return as_utc(at if isinstance(at, datetime) else datetime.fromisoformat(at))


def ago(at: datetime | str | None, now: datetime) -> str:
    """Return how long ago a moment was, or in how long it will be."""
    if at is None:
        return UNKNOWN
    seconds = (now - moment(at)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    unit_s, unit = next((each for each in _UNITS_S if abs(seconds) >= each[0]), (1, "s"))
    amount = f"{abs(seconds) // unit_s:.0f} {unit}"
    return f"{amount} ago" if seconds > 0 else f"in {amount}"


def day(at: datetime | str | None) -> str:
    """Return a moment to the second: `2026-11-22 19:00:00`."""
    return UNKNOWN if at is None else f"{moment(at):%Y-%m-%d %H:%M:%S}"


def clock(at: datetime | str) -> str:
    """Return the time of day to the millisecond."""
    return f"{moment(at):%H:%M:%S.%f}"[:-3]


def clock_short(at: datetime | str) -> str:
    """Return the time of day to the second."""
    return f"{moment(at):%H:%M:%S}"


def since(at: datetime | str, now: datetime) -> str:
    """Return the time of a moment, with the date unless it is today."""
    found = moment(at)
    return f"{found:%H:%M}" if found.date() == now.date() else f"{found:%b %d, %H:%M}"


def earlier(at: datetime | str, seconds: float) -> datetime:
    """Return the moment some seconds before another one."""
    return moment(at) - timedelta(seconds=seconds)


def instant(at: datetime | str) -> str:
    """Return a moment in the form of addresses: `2026-11-22T19:00:00Z`."""
    return f"{moment(at).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def short(name: str) -> str:
    """Return an id that is short enough for a column: its beginning and its end."""
    return name if len(name) <= _ID_SHOWN else f"{name[:8]}…{name[-6:]}"


def cut(text: str | None, characters: int) -> str:
    """Return a text in one line of at most `characters_max` characters."""
    line = " ".join((text or "")[: 4 * characters].split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def code(text: str) -> Markup:
    """Return a sentence with the words in backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it was escaped


def linked(text: str, nouns: Iterable[Noun]) -> list[str | Noun]:
    """Return a sentence in parts: the first place of each noun, with the thing it names, and the text between."""
    places = ((_place(each.text or each.name, text), each) for each in nouns)
    found = sorted(((at, each) for at, each in places if at >= 0), key=itemgetter(0))
    parts: list[str | Noun] = []
    end = 0
    for at, noun in found:
        if at >= end:
            parts += [text[end:at], noun]
            end = at + len(noun.text or noun.name)
    return [*parts, text[end:]]


def _place(name: str, text: str) -> int:
    """Return the place of a whole name in a text, not of a part of a longer name; -1: nowhere."""
    found = re.search(rf"(?<![\w:/.-]){re.escape(name)}(?![\w/-]|[.:@]\w)", text)
    return -1 if found is None else found.start()


def json_text(value: Any) -> str:
    """Return a value as indented JSON; `Raw` is formatted as it is."""
    data = bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
    return msgspec.json.format(data, indent=2).decode()


def json_line(value: Any) -> str:
    """Return the beginning of a value as JSON in one line."""
    data = bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
    return cut(data[:400].decode(errors="replace"), 160)


def json_colours(value: Any, shown_max: int = JSON_SHOWN_MAX) -> Markup:
    """Return a value as indented JSON in colours; of a long one the first `shown_max` characters."""
    text = json_text(value)
    shown = text[:shown_max]
    parts: list[str] = []
    at = 0
    for found in _TOKEN.finditer(shown):
        parts.extend((str(escape(shown[at : found.start()])), _coloured(found)))
        at = found.end()
    parts.append(str(escape(shown[at:])))
    if len(text) > len(shown):
        parts.append(f"\n… {len(text) - len(shown):,} more characters")
    return Markup("".join(parts))  # noqa: S704 - every part was escaped


def _coloured(found: re.Match[str]) -> str:
    string, colon, word, _ = cast("tuple[str | None, ...]", found.groups())
    if string is not None and colon is not None:
        return f'<span class="jk">{escape(string)}</span>:'
    kind = "js" if string is not None else "jb" if word is not None else "jn"
    return f'<span class="{kind}">{escape(found.group(0))}</span>'

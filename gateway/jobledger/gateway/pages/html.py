"""Templates, which make HTML from a page's facts. A missing fact is an error, never a gap."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from jobledger.admin.amounts import attempts_words, size
from jobledger.audit.trail_words import span
from jobledger.gateway.pages import words
from jobledger.gateway.pages.shell import Shell
from jobledger.ledger.model.state_words import state_title

_FOLDER: Final = Path(__file__).parent

STATIC: Final = _FOLDER / "static"
TEMPLATES: Final = _FOLDER / "templates"


def _filters() -> dict[str, Any]:
    return {
        "n": words.count,
        "took": words.took,
        "attempts": attempts_words,
        "span": span,
        "size": size,
        "percent": words.percent,
        "ago": words.ago,
        "day": words.day,
        "moment": words.moment,
        "clock": words.clock,
        "instant": words.instant,
        "short": words.short,
        "cut": words.cut,
        "code": words.code,
        "linked": words.linked,
        "style": words.style_of,
        "word": state_title,
        "said": words.said,
        "waits_word": words.waits_word,
        "pattern": words.pattern,
        "clock_short": words.clock_short,
        "since": words.since,
        "without_error": words.without_error,
        "earlier": words.earlier,
        "json_line": words.json_line,
        "json_colours": words.json_colours,
    }


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(_filters())
    known: dict[str, Any] = {
        "address": _address_then,
        "now_address": address,
        "here_with": _here_with,
    }
    made.globals.update(known)
    return made


def address(path: str, given: Iterable[tuple[str, str]] = ()) -> str:
    """Return the address of a page that shows the present."""
    pairs = list(given)
    return quote(path) + (f"?{urlencode(pairs)}" if pairs else "")


def carrying(there: str, named: Iterable[tuple[str, str]]) -> str:
    """Return the address of one of our pages, with a moment or range added."""
    text = urlencode(list(named))
    return f"{there}{'&' if '?' in there else '?'}{text}" if text else there


@pass_context
def _address_then(context: Context, path: str, given: Iterable[tuple[str, str]] = ()) -> str:
    """Return an address for a link in a template: it keeps the moment and the range that the page shows."""
    shell: Shell | None = context.get("shell")
    pairs = list(given)
    named = {name for name, _ in pairs}
    moment = {"at", "sequence"}
    for name, value in () if shell is None else shell.carried:
        if name not in named and not (name in moment and named & moment):
            pairs.append((name, value))
    return address(path, pairs)


@pass_context
def _here_with(context: Context, **changes: str) -> str:
    """Return the address of the present page with these parameters changed and the others unchanged."""
    shell: Shell = context["shell"]
    pairs = [(name, value) for name, value in shell.carried if name not in changes]
    return address(shell.path, [*shell.asked, *pairs, *changes.items()])


_TEMPLATES: Final = _environment()


def rendered(template: str, facts: dict[str, Any]) -> bytes:
    """Return a page, or a part of one, as UTF-8."""
    return _TEMPLATES.get_template(template).render(facts).encode()

"""Templates: what makes HTML of the facts of a page. A name that a template does not know is an error, never a gap."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from jobledger.admin.amounts import attempts_words, size
from jobledger.audit.trail_words import span
from jobledger.gateway.pages import words
from jobledger.gateway.pages.shell import Shell

_FOLDER: Final = Path(__file__).parent

#: Entries of the navigation whose pages there are.
HERE: Final = frozenset(
    {
        "overview",
        "jobs",
        "runs",
        "dead-letters",
        "queues",
        "schedules",
        "limits",
        "workers",
        "ledger",
        "acts",
        "keys",
        "tasks",
        "plan",
        "webhooks",
        "graphs",
    }
)
STATIC: Final = _FOLDER / "static"


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
        "style": words.style_of,
        "word": words.state_word,
        "said": words.said,
        "json_text": words.json_text,
        "json_line": words.json_line,
        "json_colours": words.json_colours,
    }


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(_filters())
    known: dict[str, Any] = {"address": address, "here": HERE}
    made.globals.update(known)
    return made


def address(path: str, given: Iterable[tuple[str, str]] = (), shell: Shell | None = None) -> str:
    """Return the address of a page; with the shell of a page that shows the past, of the same moment there."""
    pairs = list(given)
    if shell is not None and shell.past is not None:
        pairs.append(shell.past.named)
    return quote(path) + (f"?{urlencode(pairs)}" if pairs else "")


_TEMPLATES: Final = _environment()


def rendered(template: str, facts: dict[str, Any]) -> bytes:
    """Return a page, or a part of one, as UTF-8."""
    return _TEMPLATES.get_template(template).render(facts).encode()

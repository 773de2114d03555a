"""Searches on a command line: `jobs list 'tenant:acme state:dead'`, and searches among ids."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer

from jobledger.ledger.model.job import JobState
from jobledger.projections import JobFilter, parse_search
from jobledger.projections.search import KEYS, STATE_GROUPS, read_words


def completions(incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of a word, each with its help: the keys of a search, and states after `state:`."""
    before, blank, begun = incomplete.rpartition(" ")
    found = {f"{name}:": key.what for name, key in KEYS.items()}
    if begun.startswith("state:"):
        found = {f"state:{each}": "" for each in (*JobState, *STATE_GROUPS)}
    return [(f"{before}{blank}{text}", told) for text, told in found.items() if text.startswith(begun)]


Query = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUERY",
        help="A search, such as 'tenant:acme state:dead since:2h'; see docs/search.md.",
        autocompletion=completions,
    ),
]


def search_of(words: Iterable[str] | None) -> str:
    """Return the search in one word or in several, "" for none.

    Raises: ProjectionConfigError for words that cannot be understood, before a server is asked.
    """
    text = " ".join(words or ())
    _ = parsed(text)
    return text


def parsed(text: str, now: datetime | None = None) -> JobFilter:
    """Return a search as a filter. Raises: ProjectionConfigError."""
    return parse_search(text, datetime.now(UTC) if now is None else now)


def ids_and_search(words: Iterable[str] | None) -> tuple[list[str], str]:
    """Return the ids among the words, and the other words as one search. Raises: ProjectionConfigError."""
    given = [(word, read_words(word)) for word in words or ()]
    searches = [word for word, parts in given if parts and parts[0].key]
    return [word for word, _ in given if word not in searches], search_of(searches)


def is_edit(word: str) -> bool:
    """Return whether a word replaces an argument of the input: `cents=100`, unlike the condition `meta.region=eu`."""
    parts = read_words(word)
    return bool(parts) and parts[0].key.startswith("input.")

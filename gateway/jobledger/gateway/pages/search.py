"""The search field for jobs: its text as a filter within the viewer's rights and as chips; suggestions."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from jobledger.admin.lists.search import begun_jobs, known_values, said_keys, unknown_values
from jobledger.ledger.model.rights.authority import Principal
from jobledger.projections import JobFilter, Store
from jobledger.projections.search import KEYS, Word, pair, read_search, read_words

_ITEMS_MAX: Final = 9
_JOBS_MAX: Final = 5
_OF_EACH_MAX: Final = 3


class Chip(NamedTuple):
    """One condition, and the search without it."""

    key: str
    value: str
    without: str


class SearchChoice(NamedTuple):
    """The search that a person typed."""

    words: tuple[Word, ...]
    chosen: JobFilter
    problems: tuple[str, ...]  #: sentences about words that were not understood
    note: str  #: the meaning that was given to a word without a key

    def chips(self) -> list[Chip]:
        """Return each condition with the search without it."""
        texts = [word.text for word in self.words]
        return [
            Chip(word.key or "find", word.value, " ".join(texts[:place] + texts[place + 1 :]))
            for place, word in enumerate(self.words)
        ]


class Item(NamedTuple):
    """One suggestion."""

    group: str
    label: str
    hint: str
    text: str = ""  #: text of the field after the choice
    job: tuple[str, str] | None = None  #: queue and id of a job to open


def ask(text: str, store: Store, principal: Principal, now: datetime) -> SearchChoice:
    """Return the typed text as a filter within the user's rights. Raises: AccessDeniedError, ProjectionConfigError."""
    found = read_search(text, now)
    seen = JobFilter(visible_queues=principal.queues, visible_tasks=principal.tasks)
    chosen = store.resolved(found.chosen.both(seen))
    if chosen.reads_payloads:
        principal.require("payloads")
    note = ""
    if found.chosen.words is not None:
        note = (
            f"ids that begin with {found.chosen.words}"
            if chosen.words is None
            else f"“{chosen.words}” in ids, inputs, results, errors and metadata"
        )
    problems = (*found.problems, *unknown_values(found.words, store, principal))
    return SearchChoice(found.words, chosen, problems, note)


def exact(text: str, store: Store, principal: Principal) -> tuple[str, str] | None:
    """Return the one job whose whole id was typed, as queue and id; None unless the viewer may see exactly one."""
    words = read_words(text)
    if len(words) != 1 or words[0].key not in {"", "id"}:
        return None
    queue, slash, name = words[0].value.rpartition("/")
    seen = [
        each
        for each in begun_jobs(name, store, principal)
        if each[1] == name and (not slash or each[0] == queue)
    ]
    return seen[0] if len(seen) == 1 else None


def suggest(text: str, store: Store, principal: Principal) -> list[Item]:
    """Return suggestions for the text typed so far: values of a key that was begun, else ids, names and keys."""
    before, last = (text[: text.rfind(" ") + 1], text[text.rfind(" ") + 1 :])
    words = read_words(last)
    word = words[-1] if words else Word("", "", "")
    if word.key:
        return _values(before, word.key, word.value, store, principal, group=word.key)[:_ITEMS_MAX]
    found: list[Item] = []
    if word.value:
        found += _jobs(before, word.value, store, principal)
        for key in ("task", "queue", "tenant", "error"):
            found += _values(before, key, word.value, store, principal, group="Values")[:_OF_EACH_MAX]
    found += _conditions(before, word.value, store, principal)
    return found[: _ITEMS_MAX + 3]


def _values(
    before: str, key: str, begun: str, store: Store, principal: Principal, *, group: str
) -> list[Item]:
    mark = "=" if "." in key else ":"
    pairs = [
        (pair(key, value, mark), hint)
        for value, hint in known_values(key, begun, store, principal)
        if begun.lower() in value.lower()
    ]
    return [Item(group, typed, hint, f"{before}{typed} ") for typed, hint in pairs]


def _jobs(before: str, begun: str, store: Store, principal: Principal) -> list[Item]:
    jobs = begun_jobs(begun, store, principal) if len(begun) > 1 else []
    every = Item("Jobs", f"id:{begun}…", "all that begin so", f"{before}id:{begun}… ")
    found = [Item("Jobs", name, queue, job=(queue, name)) for queue, name in jobs[:_JOBS_MAX]]
    return [every, *found] if len(jobs) > _JOBS_MAX else found


def _conditions(before: str, begun: str, store: Store, principal: Principal) -> list[Item]:
    keys = {
        **{f"{name}:": key.what for name, key in KEYS.items()},
        **{f"{name}=": "what was said of it" for name in said_keys(store, principal)},
    }
    found = [
        Item("Conditions", key, what, f"{before}{key}") for key, what in keys.items() if key.startswith(begun)
    ]
    if found or not principal.may("payloads"):
        return found
    text = pair("text", begun)
    return [Item("Conditions", text, KEYS["text"].what, f"{before}{text} ")]

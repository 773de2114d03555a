"""Tables, fields and limits in the documentation are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, cast

import msgspec
import nats.aio.client
import nats.aio.subscription
import pytest
from tests.support.tables import each_row

from jobledger.ledger import LedgerConfig
from jobledger.ledger.model.events import EVENT_CLASSES, Event, Queued, Scheduled
from jobledger.ledger.model.json_text import DEPTH_MAX
from jobledger.ledger.model.lifecycle import CAUSES, LEGAL
from jobledger.ledger.model.lock import LOCK, Acquired, Released
from jobledger.ledger.options import MAX_ATTEMPTS_DEFAULT
from jobledger.workers import WorkerConfig

ROOT = Path(__file__).parents[2]
_PAGES_WITH_LIMITS = ("guarantees.md", "operations.md", "tasks.md")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Tables that are compared with the code.


def _table(page: Path, heading: str) -> list[list[str]]:
    """Return the rows of the first table under a heading, without its two head lines."""
    text = page.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert section is not None, f"{_name(page)} has no section {heading!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _words(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def _tag(follower: type[msgspec.Struct] | str) -> str:
    return follower if isinstance(follower, str) else str(follower.__struct_config__.tag)


@pytest.mark.parametrize(
    ("heading", "rules"), [("Which event may follow", LEGAL), ("Why a job may be queued", CAUSES)]
)
def test_lifecycle_tables_are_those_of_the_code(heading: str, rules: Any) -> None:
    rows = _table(ROOT / "docs" / "lifecycle.md", heading)
    documented = {state.strip("`"): _words(follow) for state, follow in rows}
    assert documented == {
        "(no job yet)" if state is None else state.value: {_tag(each) for each in follow}
        for state, follow in rules.items()
        if follow
    }


def test_every_state_is_described() -> None:
    rows = _table(ROOT / "docs" / "lifecycle.md", "States")
    assert [row[0].strip("`") for row in rows] == [state.value for state in LEGAL if state is not None]


def _fields(cls: type[msgspec.Struct]) -> set[str]:
    return set(cls.__struct_fields__)


_ENVELOPE = _fields(Event)
_ORDER = (_fields(Queued) & _fields(Scheduled)) - _ENVELOPE


def _id_of(value: object) -> str:
    """Name a case the same in every process: a set has no order of its own."""
    return value if isinstance(value, str) else "-".join(sorted(map(str, cast("set[str]", value)))) or "none"


@each_row(
    ("heading", "fields"),
    [
        ("Envelope", _ENVELOPE | {"type"}),
        ("Order", _ORDER),
        *(
            (
                str(cls.__struct_config__.tag),
                _fields(cls) - _ENVELOPE - (_ORDER if _fields(cls) >= _ORDER else set()),
            )
            for cls in EVENT_CLASSES
        ),
    ],
    ids=_id_of,
)
def test_every_field_of_an_event_is_described(heading: str, fields: set[str]) -> None:
    rows = _table(ROOT / "docs" / "events.md", heading)
    assert {row[0].strip("`") for row in rows} == fields


_LOCK_ENVELOPE = _fields(Acquired) & _fields(Released)


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("Envelope", _LOCK_ENVELOPE | {"type"}),
        *((str(cls.__struct_config__.tag), _fields(cls) - _LOCK_ENVELOPE) for cls in LOCK.types.values()),
    ],
    ids=_id_of,
)
def test_every_field_of_a_locks_event_is_described(heading: str, fields: set[str]) -> None:
    rows = _table(ROOT / "docs" / "locks.md", heading)
    assert {row[0].strip("`") for row in rows} == fields


def test_no_event_is_described_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (.+)$", text, flags=re.MULTILINE)) - {"Envelope", "Order"}
    assert headings == {str(cls.__struct_config__.tag) for cls in EVENT_CLASSES}


def test_limits_in_the_docs_are_the_defaults() -> None:
    ledger, worker = LedgerConfig(), WorkerConfig()
    said = {
        page: " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
        for page in _PAGES_WITH_LIMITS
    }
    assert f"Input or result inside the event | {ledger.inline_bytes_max >> 10} KiB" in said["tasks.md"]
    assert f"Input or result at all | {ledger.payload_bytes_max >> 20} MiB" in said["tasks.md"]
    assert f"Nesting | {DEPTH_MAX} levels" in said["tasks.md"]
    assert f"`max_attempts` | {MAX_ATTEMPTS_DEFAULT} |" in said["tasks.md"]
    assert f"({worker.concurrency} by default)" in said["tasks.md"]
    assert f"{ledger.enqueue_in_flight_max:,} appends" in said["tasks.md"]
    assert f"a limit of {ledger.ledger_bytes_max >> 30} GiB" in said["operations.md"]
    assert f"`--grace` seconds ({worker.grace_s:g})" in said["operations.md"]
    assert (
        f"one lease, {ledger.lease_s:g} s by default, renewed every {ledger.lease_s / 3:g} s"
        in said["guarantees.md"]
    )
    assert f"Only if that fails for {ledger.append_timeout_s:g} s" in said["guarantees.md"]


def test_the_private_names_of_nats_py_are_those_on_record() -> None:
    """ADR 004 lists what a new version of nats-py could take away."""
    record = (ROOT / "docs" / "adr" / "004-own-hot-paths-on-nats-py.md").read_text(encoding="utf-8")
    paragraph = record.partition("**Private names")[2].partition("\n\n")[0]
    source = (ROOT / "ledger" / "jobledger" / "ledger" / "nats" / "connection.py").read_text(encoding="utf-8")
    used = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    theirs = {*vars(nats.aio.client.Client()), *vars(nats.aio.client.Client)}
    private = {name for name in used & theirs if re.match(r"_[a-z]", name)}
    subscription = (
        {"_id"} & used & set(inspect.signature(nats.aio.subscription.Subscription).parameters | {"_id": 0})
    )
    assert private | subscription == set(re.findall(r"`(_\w+)`", paragraph))

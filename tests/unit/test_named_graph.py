"""A graph of tasks by their names is the graph that code makes of the tasks themselves."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from jobledger.ledger import Graph, Task, task
from jobledger.ledger.additions.announced import AnnouncedTask, entry_of
from jobledger.ledger.graphs.named import NamedGraph, graph_of
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.named.book import AnnouncedTasks
from jobledger.ledger.nats.task_book import TaskEntry
from jobledger.ledger.patience import Patience

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"


@task(queue="web", priority="high", max_attempts=3)
async def fetch(page: int) -> list[str]:
    return [str(page)]


@task(queue="etl")
async def merge(a: list[str], b: list[str]) -> str:
    return str(a + b)


@task(queue="mail")
async def send(to: str, text: str) -> int:
    return len(text)


@task(queue="etl")
async def tidy() -> None: ...


TASKS: dict[str, Task[..., Any]] = {each.name: each for each in (fetch, merge, send, tidy)}


class _Patience:
    async def read(self, ask: Any) -> Any:
        return await ask()


def announced() -> AnnouncedTasks:
    async def find(name: str) -> TaskEntry | None:
        return entry_of(TASKS[name], worker="w-1", at=datetime(2026, 1, 1, tzinfo=UTC))

    async def names() -> list[str]:
        return list(TASKS)

    return AnnouncedTasks(find, names, SYSTEM_CLOCK)


async def test_the_graph_of_the_page_is_the_same_in_code_and_as_json() -> None:
    block = re.search(r"^```json\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    told = msgspec.json.decode(block[1])
    assert told.pop("id") == "nightly-2026-11-22"
    given = msgspec.convert(told, NamedGraph)
    named = await graph_of(cast("Patience", _Patience()), announced(), given)
    graph = Graph("nightly", limit=5)
    total = graph.add(merge, graph.add(fetch, 1), graph.add(fetch, 2))
    sent = graph.add(send, to="ops@example.com", text=total)
    graph.after(sent, always=True).add(tidy)
    found, wanted = named.spec(), graph.spec()
    labels = [node.label for node in found.nodes]
    assert labels == ["one", "two", "total", "sent", "tidy"]
    nodes = [
        msgspec.structs.replace(node, label=label) for node, label in zip(wanted.nodes, labels, strict=True)
    ]
    assert found == msgspec.structs.replace(wanted, nodes=tuple(nodes))


async def test_an_announced_input_is_checked_but_for_what_comes_later() -> None:
    checked = AnnouncedTask(entry_of(send, worker="w", at=datetime(2026, 1, 1, tzinfo=UTC))).signature
    assert checked.check_known({"to": "a", "text": None}, {"text"}) == {"to": "a", "text": None}
    assert checked.defaults == {}

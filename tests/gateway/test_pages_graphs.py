"""The page of stored graphs: what is stored, one of them with its nodes, and a form that begins a run."""

from __future__ import annotations

import html
import re

import httpx
import pytest

from jobledger.ledger import Graph, GraphNotFoundError, Ledger, task

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def send(to: str, text: str = "") -> str:
    return to


async def test_a_person_sees_a_stored_graph_begins_a_run_and_takes_it_away(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    graph = Graph("letters")
    first = graph.add(send.options(name="first"), Graph.input("/customer/name"), text=Graph.input("/text"))
    graph.after(first).add(send.options(name="second"), "ops")
    await ledger.graphs.put(graph, reason="<script>alert(1)</script>", by="ann")
    assert 'href="/graphs?graph=letters"' in (await http.get("/graphs")).text
    page = (await http.get("/graphs?graph=letters")).text
    assert "<script>alert" not in page
    for word in (">first<", ">second<", "version 1", "Begin the run"):
        assert word in page, word
    found = re.search(r'name="token" value="([^"]+)"', page)
    example = re.search(r'<textarea name="input"[^>]*>(.*?)</textarea>', page, flags=re.DOTALL)
    assert found is not None
    assert example is not None
    given = html.unescape(example[1]).replace("null", '"bea"')
    assert given.split() == ["{", '"customer":', "{", '"name":', '"bea"', "},", '"text":', '"bea"', "}"]
    sent = {"token": found[1], "reason": "old"}
    assert (await http.post("/graphs/letters/run", data={**sent, "input": "[]"})).status_code == 400
    for _ in range(2):
        begun = await http.post("/graphs/letters/run", data={**sent, "input": given, "id": "l-1"})
        assert (begun.status_code, begun.headers["location"]) == (303, "/jobs/jobledger/l-1")
    assert (await http.post("/graphs/letters/remove", data=sent)).status_code == 303
    with pytest.raises(GraphNotFoundError):
        await ledger.graphs.get("letters")
    assert "No graph is stored" in (await http.get("/graphs")).text
    assert (await http.get("/graphs?graph=letters")).status_code == 404

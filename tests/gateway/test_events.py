"""Events over HTTP: live, from the past, resumed on another gateway, and cut off where a reader is too slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import Cutter, Event, events_of, gateway_of, listening
from tests.support.limits import LIMIT_S
from tests.support.open_gateway import LocalAccess
from tests.support.working import until

from jobledger.admin.events.choice import chosen_events
from jobledger.gateway.events.feed import Feed
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.shares import Asker, Share, Shares
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.commands import Claim, Fail, Note, Requeue
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.subscriptions.filter import Start

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def send(number: int) -> None:
    """Be enqueued only."""


async def _add(ledger: Ledger, count: int, queue: str = "mail") -> None:
    await ledger.enqueue_many(send.options(queue=queue), ({"number": n} for n in range(count)))


async def _take(response: httpx.Response, count: int) -> list[Event]:
    """Read that many events that have data."""
    found: list[Event] = []
    async with asyncio.timeout(LIMIT_S):
        async for event in events_of(response):
            if event.data:
                found.append(event)
            if len(found) == count:
                break
    return found


async def test_new_events_are_streamed_with_their_sequence(ledger: Ledger, served: httpx.AsyncClient) -> None:
    await _add(ledger, 3)
    async with served.stream("GET", "/v1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        await _add(ledger, 2)
        found = await _take(response, 2)
    assert [(event.id, event.kind) for event in found] == [("4", "queued"), ("5", "queued")]
    assert json.loads(found[0].data)["stream_sequence"] == 4


async def test_head_begins_no_stream(ledger: Ledger, gateway: Gateway, http: httpx.AsyncClient) -> None:
    job = await ledger.enqueue(send, number=1)
    heads = {"accept": "text/event-stream"}
    gateway.feed.close()  # each stream would be refused
    for path in ("/v1/events", f"/v1/jobs/mail/{job.id}/events", "/live"):
        async with asyncio.timeout(LIMIT_S):
            answer = await http.head(path, headers=heads)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
    assert (await http.get("/v1/events", headers=heads)).json()["code"] == "BUSY"


async def test_the_past_comes_first_and_then_what_is_new(ledger: Ledger, served: httpx.AsyncClient) -> None:
    await _add(ledger, 5)
    async with served.stream("GET", "/v1/events?from=2&queue=mail") as response:
        assert [event.id for event in await _take(response, 4)] == ["2", "3", "4", "5"]


async def test_the_stream_of_a_job_ends_with_it_and_not_with_an_end_that_was_taken_back(
    ledger: Ledger, served: httpx.AsyncClient
) -> None:
    job = await ledger.enqueue(send.options(max_attempts=1), number=1)
    error = ErrorInfo(kind="exception", type="ValueError", message="no such house")
    claimed = await ledger.execute(job.ref, Claim(worker="web-1-0a", lease_s=15))
    await ledger.execute(job.ref, Fail(epoch=claimed.claim_epoch, error=error))
    await ledger.execute(job.ref, Requeue())
    heads = {"accept": "text/event-stream"}
    async with (
        asyncio.timeout(LIMIT_S),
        served.stream("GET", f"/v1/jobs/mail/{job.id}/events", headers=heads) as it,
    ):
        events = events_of(it)
        kinds: list[str] = []
        while len(kinds) < 5:
            kinds += [each.kind for each in [await anext(events)] if each.data]
        await job.cancel()
        await ledger.execute(job.ref, Note(text="it was the wrong house"))
        kinds += [each.kind async for each in events if each.data]
    assert kinds[:6] == ["queued", "started", "failed", "dead_lettered", "queued", "cancelled"]
    assert set(kinds[6:]) <= {"noted"}


async def test_a_reader_whom_a_proxy_cuts_off_a_hundred_times_sees_each_event_once(
    ledger: Ledger, gateway: Gateway, tmp_path: Path
) -> None:
    """The proxy cuts after any byte, also within an event, and each time another gateway goes on."""
    chance, seen, last = random.Random(), list[int](), "0"
    async with (
        gateway_of(ledger, tmp_path) as other,
        listening(gateway) as first,
        listening(other) as second,
        httpx.AsyncClient(timeout=LIMIT_S) as client,
    ):
        cutter = Cutter((first, second), chance, cuts_max=100, bytes_max=2_500)
        adding = asyncio.create_task(_add(ledger, 400))
        async with cutter.listening() as url, asyncio.timeout(2 * LIMIT_S):
            while len(seen) < 400:
                with contextlib.suppress(httpx.TransportError):
                    async with client.stream(
                        "GET", f"{url}/v1/events", headers={"last-event-id": last}
                    ) as response:
                        async for event in events_of(response):
                            last = event.id  # of one that came whole: what the standard calls dispatched
                            seen += [int(event.id)] if event.data else []
                            if len(seen) == 400:
                                break
        await adding
    assert seen == list(range(1, 401))
    assert cutter.cuts == 100


async def test_lines_for_those_who_poll(ledger: Ledger, served: httpx.AsyncClient) -> None:
    await _add(ledger, 5)
    lines = {"accept": "application/x-ndjson"}
    first = await served.get("/v1/events?from=1&limit=3", headers=lines)
    assert [json.loads(line)["stream_sequence"] for line in first.text.splitlines()] == [1, 2, 3]
    onward = {**lines, "last-event-id": first.headers["last-event-id"]}
    rest = await served.get("/v1/events", headers=onward)
    assert [json.loads(line)["stream_sequence"] for line in rest.text.splitlines()] == [4, 5]
    onward["last-event-id"] = rest.headers["last-event-id"]
    assert (await served.get("/v1/events", headers=onward)).text == ""
    waiting = asyncio.create_task(served.get("/v1/events?wait=20", headers=onward))
    await _add(ledger, 1)
    assert json.loads((await waiting).text)["stream_sequence"] == 6


@pytest.mark.parametrize(
    ("headers", "query", "word"),
    [
        ({"last-event-id": "x"}, "", "give the id of an event"),
        ({"last-event-id": "99"}, "", "beyond"),
        ({}, "?from=0", ">= 1"),
        ({}, "?from=1&since=2026-01-01T00:00:00Z", "both say where to begin"),
        ({}, "?type=eaten", "there is no event type 'eaten'"),
    ],
)
async def test_a_stream_that_cannot_begin_is_refused_before_it_begins(
    served: httpx.AsyncClient, headers: dict[str, str], query: str, word: str
) -> None:
    answer = await served.get(f"/v1/events{query}", headers=headers)
    assert answer.status_code == 400
    assert word in answer.json()["detail"]


async def test_a_key_sees_events_of_its_queues_and_no_values(
    gateway: Gateway, ledger: Ledger, served: httpx.AsyncClient
) -> None:
    class Viewer(LocalAccess):
        def principal(self, connection: object) -> Principal:
            return Principal(name="eve", permissions=frozenset({"view"}), queues=("mail",))

    gateway.access = Viewer()
    await _add(ledger, 1, queue="other")
    await _add(ledger, 1)
    answer = await served.get("/v1/events?from=1", headers={"accept": "application/x-ndjson"})
    (line,) = answer.text.splitlines()
    assert (json.loads(line)["queue"], "input" in json.loads(line)) == ("mail", False)


async def test_a_reader_that_is_too_slow_is_cut_off_and_told_so(ledger: Ledger) -> None:
    await _add(ledger, 1)
    async with Feed(ledger, kept_max=10) as feed:
        portions = feed.portions(chosen_events(), Start(live=True))
        assert await anext(portions) == ([], 1)
        await _add(ledger, 30)
        await until(lambda: feed.head >= 31)
        with pytest.raises(ProblemError, match="30 events behind and 10 are kept") as cut:
            await anext(portions)
    assert cut.value.code == "READER_TOO_SLOW"


async def test_nothing_is_read_while_nobody_reads(ledger: Ledger) -> None:
    await _add(ledger, 3)
    async with Feed(ledger, read_on_s=0.0) as feed, asyncio.timeout(LIMIT_S):
        before = feed.is_reading
        first = feed.portions(chosen_events(), Start(live=True))
        assert await anext(first) == ([], 3)
        await _add(ledger, 1)
        assert (await anext(first))[1] == 4
        await first.aclose()
        await until(lambda: not feed.is_reading)
        await _add(ledger, 2)
        again = feed.portions(chosen_events(), Start(from_sequence=4))
        found = [each.sequence for _ in range(2) for each in (await anext(again))[0]]
        await _add(ledger, 1)
        found += [each.sequence for each in (await anext(again))[0]]
        assert (before, found, feed.head) == (False, [4, 5, 6, 7], 7)


async def test_who_comes_back_soon_finds_the_events_kept(ledger: Ledger) -> None:
    await _add(ledger, 1)
    shares = Shares({"readers": Share(each=1, total=1)})
    shares.take("readers", "somebody")  # so nobody else reads the past
    async with Feed(ledger) as feed, asyncio.timeout(LIMIT_S):
        asker = Asker(shares, "ci", named="key:ci/1")
        asker.begin()
        first = feed.portions(chosen_events(), Start(live=True))
        await anext(first)
        await first.aclose()
        await _add(ledger, 5)
        await until(lambda: feed.head >= 6)
        again = feed.portions(chosen_events(), Start(from_sequence=2))
        await anext(again)
        assert [each.sequence for each in (await anext(again))[0]] == [2, 3, 4, 5, 6]
        asker.end()


async def test_who_reads_the_past_has_a_share_of_the_readers(ledger: Ledger) -> None:
    await _add(ledger, 20)
    shares = Shares({"readers": Share(each=1, total=2)})
    async with Feed(ledger) as feed:
        asker = Asker(shares, "ci", named="key:ci/1")
        asker.begin()
        first = feed.portions(chosen_events(), Start(from_sequence=1))
        await anext(first)
        with pytest.raises(ProblemError, match="key:ci/1 has 1 streams that read the past open, of 1"):
            await anext(feed.portions(chosen_events(), Start(from_sequence=1)))
        await first.aclose()
        asker.end()
    assert not any(shares.open.values())


async def test_streams_end_when_the_gateway_stops(
    ledger: Ledger, gateway: Gateway, served: httpx.AsyncClient
) -> None:
    async with served.stream("GET", "/v1/events") as response:
        gateway.feed.close()
        async with asyncio.timeout(LIMIT_S):
            assert "retry: 1000" in (await response.aread()).decode()
    assert (await served.get("/v1/events")).json()["code"] == "BUSY"

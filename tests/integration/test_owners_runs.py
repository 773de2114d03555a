"""Runs that have owners: one word in every kind of value of a run, found nowhere on the disk, and read by who has the key."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import pytest
from tests.integration.test_owners import found_in, master_file
from tests.support.limits import LIMIT_S
from tests.support.working import becomes, working

from jobledger.cli.errors import USAGE
from jobledger.cli.main import run
from jobledger.ledger import (
    Backoff,
    Graph,
    InvalidInputError,
    JobFailedError,
    JobState,
    Ledger,
    Limit,
    Run,
    RunEnd,
    Signal,
    StepFailedError,
    step,
    task,
    workflow,
)
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
OWNER: dict[str, Any] = {"owner": "person:17"}
said = Signal("said", str)
asked = Signal("asked", int)


@step(max_attempts=2, backoff=Backoff(base_s=0.05, jitter=0.0))
async def tries(text: str) -> str:
    raise LookupError(text)


@step
async def echoes(text: str) -> str:
    return text


@step
async def goes_back(text: str) -> None:
    raise PermissionError(text)


@task(max_attempts=1)
async def takes(end: RunEnd) -> str:
    return f"{end.state} {end.result} {end.error}"


@task(max_attempts=1)
async def part(text: str) -> str:
    return f"{text}!"


@task(max_attempts=1)
async def fails(text: str) -> str:
    raise ValueError(f"{text} is not known")


@task(owner="person:{person}", max_attempts=1)
async def of_person(person: int) -> int:
    return person


@workflow(on_success=takes, max_attempts=3)
async def book(run: Run, text: str) -> str:
    found = await run.step(echoes, text)
    with contextlib.suppress(StepFailedError):
        await run.step(tries, found)
    parts = await run.map(part, [f"{text}-{number}" for number in range(12)])
    (failed,) = await run.map_settled(fails, [text])
    assert text in failed.error
    assert await run.call(of_person, 17) == 17
    number = await run.wait(asked)
    heard = await run.wait(said)
    assert parts[3] == f"{text}-3!"
    return f"{found} {heard} {number}"


@workflow(on_fail=takes, max_attempts=3)
async def breaks(run: Run, text: str) -> None:
    run.on_failure(goes_back, text)
    await run.step(tries, text)


@workflow(max_attempts=1)
async def strays(run: Run) -> int:
    return await run.call(of_person, 18)


TASKS = (takes, part, fails, of_person, book, breaks, strays)


async def test_nothing_of_a_run_is_stored_in_the_clear(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    word = f"Canary-{secrets.token_hex(6)}"
    large = f"{word}-" * 9_000
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, working(ledger, *TASKS):
        job = await ledger.enqueue(book.options(id="run", **OWNER), word)
        broken = await ledger.enqueue(breaks.options(id="broken", **OWNER), word)
        await ledger.note(job, f"asked by {word}")
        await ledger.signal(job, asked, 7)
        await ledger.signal(job, said, large)
        assert await job.result(timeout_s=LIMIT_S) == f"{word} {large} 7"
        with pytest.raises(JobFailedError):
            await broken.result(timeout_s=LIMIT_S)
        told = await (await ledger.job("run-end")).result(timeout_s=LIMIT_S)
        assert told.startswith("completed")
        assert word in await (await ledger.job("broken-end")).result(timeout_s=LIMIT_S)
        states: dict[str, int] = {}
        async for portion in ledger.log.read_messages():
            for message in portion:
                assert word.encode() not in message.data, message.subject
                found = msgspec.json.decode(message.data)
                if message.subject.startswith("ledger.job.") or ".job." in message.subject:
                    assert found["key"] == "person:17/1", message.subject
                states[found["type"]] = states.get(found["type"], 0) + 1
        assert {"step_started", "step_completed", "step_failed", "noted", "signalled"} <= states.keys()
        assert found_in(nats_server.directory, word) == {}


async def test_a_child_has_the_owner_of_its_run(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, working(ledger, *TASKS):
        for options, has in ((strays.options(**OWNER), "person:17"), (strays, "none")):
            job = await ledger.enqueue(options)
            await becomes(job, JobState.DEAD_LETTERED)
            with pytest.raises(JobFailedError) as failed:
                await job.result()
            if has == "none":
                assert "its run has none: give the run that owner" in str(failed.value)


@task(max_attempts=1)
async def joins(text: str, more: str = "") -> str:
    return f"{text} {more}"


@task(max_attempts=1)
async def reports(batch: str, counts: dict[str, int]) -> str:
    return f"{batch}: {counts}"


async def test_graphs_and_batches_are_sealed_where_all_values_are(connected: Connect, tmp_path: Path) -> None:
    word = f"Canary-{secrets.token_hex(6)}"
    graph = Graph("two")
    first = graph.add(part, word)
    graph.add(joins, first, more=word)
    tasks = (*TASKS, joins, reports)
    async with (
        connected(master_key=master_file(tmp_path, "m1"), seal="all") as ledger,
        working(ledger, *tasks),
    ):
        found = await (await ledger.run_graph(graph, id="g")).result(timeout_s=LIMIT_S)
        assert found["joins"] == f"{word}! {word}"
        await ledger.enqueue_many(part, [{"text": f"{word}{n}"} for n in range(5)], batch="b", on_end=reports)
        batch = await ledger.job("b")
        assert await batch.result(timeout_s=LIMIT_S) == {"completed": 5}
        async for portion in ledger.log.read_messages():
            assert not [each.subject for each in portion if word.encode() in each.data]


@task(owner="person:{person}", max_attempts=1)
async def letter(person: int, text: str) -> str:
    return f"{text} to {person}"


async def test_a_graph_has_an_owner_and_so_have_its_nodes(connected: Connect, tmp_path: Path) -> None:
    word = f"Canary-{secrets.token_hex(6)}"

    def graph(person: Any = 17, **options: Any) -> Graph:
        made = Graph("two")
        first = made.add(letter, person, word)
        made.add(joins.options(**options), first, more=word)
        return made

    keyed = {"limits": (Limit("customer", slots=1, key="more"),)}
    async with (
        connected(master_key=master_file(tmp_path, "m1")) as ledger,
        working(ledger, *TASKS, joins, letter),
    ):
        job = await ledger.run_graph(graph(), id="g", owner="person:17")
        assert (await job.result(timeout_s=LIMIT_S))["joins"] == f"{word} to 17 {word}"
        again = await ledger.run_graph(graph(), id="g", owner="person:17")
        assert not again.created
        async for portion in ledger.log.read_messages():
            assert not [each.subject for each in portion if word.encode() in each.data]
            jobs = [each for each in portion if ".job." in each.subject]
            assert {msgspec.json.decode(each.data)["key"] for each in jobs} <= {"person:17/1"}
        head = (await ledger.log.head()).last_sequence
        for wrong, owner, why in (
            (graph(), "", "has the owner person:17, and the graph has none"),
            (graph(18), "person:17", "has the owner person:18, and the graph has person:17"),
            (graph(**keyed), "person:17", "limit customer of node 'joins' of graph two takes its key"),
        ):
            with pytest.raises(InvalidInputError, match=why):
                await ledger.run_graph(wrong, owner=owner)
        with pytest.raises(InvalidInputError, match="owner must be kind:id"):
            await ledger.run_graph(graph(), owner="Jane Doe")
        with pytest.raises(InvalidInputError, match="a stored graph keeps values in the clear"):
            await ledger.graphs.put(graph())
        late = Graph("late")
        with pytest.raises(InvalidInputError, match="makes its owner of person, which is the result"):
            late.add(letter, late.add(of_person, 17), word)
        assert (await ledger.log.head()).last_sequence == head


async def test_where_all_is_sealed_a_graph_names_no_limit_by_its_input(
    connected: Connect, tmp_path: Path
) -> None:
    graph = Graph("one")
    graph.add(joins.options(limits=(Limit("customer", slots=1, key="text"),)), "Jane")
    async with connected(master_key=master_file(tmp_path, "m1"), seal="all") as ledger:
        with pytest.raises(InvalidInputError, match=r"which is sealed for ledger:default"):
            await ledger.run_graph(graph)


async def test_commands_name_an_owner_and_show_its_values_with_the_key_alone(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBLEDGER_URL", nats_server.url)
    monkeypatch.setenv("JOBLEDGER_ENVIRONMENT", "owners_cli")
    key = master_file(tmp_path, "m1")
    app, owner = ("--app", "tests.integration.test_owners_runs"), ("--owner", "person:17")

    def command(*words: str) -> tuple[int, str]:
        code = run(words)
        return code, capsys.readouterr().out

    enqueue = ("enqueue", "part", "text=Canary", "--id", "c", *owner, *app)
    code, _ = await anyio.to_thread.run_sync(command, *enqueue)
    assert code == USAGE
    monkeypatch.setenv("JOBLEDGER_MASTER_KEY", key)
    for words in (
        enqueue,
        ("schedules", "add", "s", "--task", "part", "--on-demand", *owner, "--input", '{"text": "x"}', *app),
    ):
        code, _ = await anyio.to_thread.run_sync(command, *words)
        assert code == 0, words
    assert '"Canary"' in (await anyio.to_thread.run_sync(command, "jobs", "show", "c", "--json"))[1]
    monkeypatch.delenv("JOBLEDGER_MASTER_KEY")
    shown = (await anyio.to_thread.run_sync(command, "jobs", "show", "c", "--json"))[1]
    assert '{"sealed":"person:17/1"}' in shown.replace(" ", "")
    assert "Canary" not in shown


async def test_commands_show_the_words_of_errors_notes_and_steps_with_the_key_alone(
    connected: Connect,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    word, key = f"Canary-{secrets.token_hex(6)}", master_file(tmp_path, "m1")
    async with connected(master_key=key) as ledger:
        async with working(ledger, *TASKS):
            dead = await ledger.enqueue(fails.options(id="dead", metadata={"who": word}, **OWNER), word)
            broken = await ledger.enqueue(breaks.options(id="broken", **OWNER), word)
            for each in (dead, broken):
                await becomes(each, JobState.DEAD_LETTERED)
                await ledger.note(each, f"{word} called")
        environment = ledger.names.environment
    monkeypatch.setenv("JOBLEDGER_URL", nats_server.url)
    monkeypatch.setenv("JOBLEDGER_ENVIRONMENT", environment)

    def command(*words: str) -> str:
        assert run(words) == 0, words
        return capsys.readouterr().out

    asked = [
        ("jobs", "show", "dead"),
        ("jobs", "show", "dead", "--json"),
        ("jobs", "show", "broken", "--steps"),
        ("jobs", "show", "broken", "--steps", "--results", "--json"),
        ("audit", "trail", "broken"),
        ("audit", "trail", "broken", "--json"),
        ("jobs", "show", "dead", "--why"),
        ("dlq", "show", "dead"),
    ]
    for has_key in (True, False):
        if has_key:
            monkeypatch.setenv("JOBLEDGER_MASTER_KEY", key)
        else:
            monkeypatch.delenv("JOBLEDGER_MASTER_KEY")
        told = {words: await anyio.to_thread.run_sync(command, *words) for words in asked}
        assert [words for words, text in told.items() if (word in text) is not has_key] == []

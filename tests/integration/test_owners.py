"""Jobs that have owners: one word in every value, found nowhere on the disk; erased with the owner's key."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.audit.export import write_export
from jobledger.audit.why import explain, find_facts
from jobledger.ledger import (
    ConfigurationError,
    Context,
    ErasedError,
    InvalidInputError,
    JobState,
    KeyUnavailableError,
    Ledger,
    RefusedError,
    RouteDefinition,
    RouteRule,
    ScheduleExistsError,
    TaskRegistry,
    Unique,
    connect,
    task,
)
from jobledger.ledger.derived_jobs import begin_derived
from jobledger.ledger.masters import KeyService
from jobledger.ledger.model.commands import Dispatch, Enqueue, Note
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.forms import FORM_FIRST
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.reactors.stranded_jobs import DISPATCHES_MAX, judge

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
WORD = "Canary-Jane-7731"


@task(owner="person:{person}", max_attempts=1)
async def greet(person: int, text: str) -> str:
    return f"hello {text}"


@task(max_attempts=1)
async def fails(text: str) -> str:
    raise ValueError(f"{text} is not known")


@task(max_attempts=2)
async def keeps(context: Context, text: str) -> str:
    logging.getLogger("app").warning("looks at %s", text)
    context.progress(1, 2, f"with {text}")
    if context.checkpoint_value is None:
        await context.checkpoint({"at": text})
        raise RuntimeError(text)
    return str(context.checkpoint_value["at"])


@task
async def makes(context: Context, text: str) -> None:
    await context.ledger.enqueue(fails.options(id="made"), text=text)


TASKS = (greet, fails, keeps, makes)


def master_file(folder: Path, *names: str) -> str:
    path = folder / f"{'-'.join(names)}.key"
    if not path.exists():
        path.write_text("".join(f"{each} {base64.b64encode(os.urandom(32)).decode()}\n" for each in names))
    return f"file:{path}"


async def work(ledger: Ledger, *jobs: Any) -> None:
    worker = Worker(ledger, TaskRegistry(TASKS), WorkerConfig(grace_s=2.0))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT_S):
        for job in jobs:
            await job.wait()
    worker.stop()
    await running


def found_in(folder: Path, word: str) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): count for path in files if (count := path.read_bytes().count(word.encode()))}


async def test_a_word_in_every_value_is_found_nowhere(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    word = f"{WORD}-{secrets.token_hex(4)}"
    owned: dict[str, Any] = {"owner": "person:17"}
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        small = await ledger.enqueue(greet, person=17, text=word)
        large = await ledger.enqueue(greet.options(id="large"), person=17, text=word * 6_000)
        dead = await ledger.enqueue(
            fails.options(metadata={"who": word, "empty": ""}, unique=Unique(), **owned), text=word
        )
        kept = await ledger.enqueue(keeps.options(**owned), text=word)
        maker = await ledger.enqueue(makes.options(**owned), text=word)
        with caplog.at_level(logging.DEBUG):
            await work(ledger, small, large, dead, kept, maker)
        assert await small.result() == f"hello {word}"
        assert len(await large.result()) == len(f"hello {word * 6_000}")
        assert await kept.result() == word
        made = await ledger.job("made")
        assert (await made.snapshot()).order.key == "person:17/1"
        job = await dead.snapshot()
        assert job.state is JobState.DEAD_LETTERED
        assert job.error is not None
        assert (job.error.type, job.error.message, job.error.traceback) == ("ValueError", "", "")
        assert str(job.error.where).startswith("test_owners.py:")
        assert str(job.error.where).endswith(" fails")
        assert {json.loads(each.data)["v"] for each in await kept.history()} == {2}
        async for portion in ledger.log.read_messages():
            for message in portion:
                assert word.encode() not in message.data, message.subject
        await write_export(ledger.log, tmp_path / "export")
        assert found_in(nats_server.directory, word) == found_in(tmp_path, word) == {}
        said = [each.getMessage() for each in caplog.records if each.name.startswith("jobledger")]
        assert said
        assert not [each for each in said if word in each]


async def test_a_repeat_is_known_by_its_input_though_equal_values_look_different(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        one = await ledger.enqueue(greet.options(id="a"), person=1, text="x")
        again = await ledger.enqueue(greet.options(id="a"), person=1, text="x")
        other = await ledger.enqueue(greet.options(id="b"), person=1, text="x")
        assert (one.created, again.created) == (True, False)
        inputs = [bytes((await each.snapshot()).order.input) for each in (one, other)]
        assert inputs[0] != inputs[1]
        unique = fails.options(owner="person:1", unique=Unique())
        jobs = [await ledger.enqueue(unique, text="same") for _ in range(2)]
        assert jobs[0].id == jobs[1].id


async def test_what_has_an_owner_and_no_key_is_refused(connected: Connect) -> None:
    async with connected() as ledger:
        with pytest.raises(ConfigurationError, match="JOBLEDGER_MASTER_KEY"):
            await ledger.enqueue(greet, person=1, text="x")
        assert (await ledger.log.head()).last_sequence == 0


async def test_a_job_whose_derived_id_is_taken_begins_under_another_one(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        handle = await ledger.enqueue(greet, person=1, text="x")
        job = await handle.snapshot()
        taken = Enqueue(ref=handle.ref, task=job.task, order=job.order)
        begun = await begin_derived(ledger.log, taken, ledger.stamp, lambda _first: False)
        assert (begun.created, begun.ref.job_id.startswith("taken-")) == (True, True)
        assert (await (await ledger.job(begun.ref.job_id)).snapshot()).order.key == "person:1/1"


async def test_what_is_not_sealed_yet_is_refused(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        job = await ledger.enqueue(greet, person=1, text="x")
        with pytest.raises(InvalidInputError, match=r"text of the event noted .* is not sealed"):
            await ledger.execute(job.ref, Note(text="a word about Jane"))
        assert [each.event.key for each in await job.history()] == ["person:1/1"]


async def test_a_worker_without_the_master_key_passes_on_sealed_jobs_alone(
    connected: Connect, tmp_path: Path
) -> None:
    key = master_file(tmp_path, "m1")
    async with connected(master_key=key) as ledger, connected() as poor:
        sealed = await ledger.enqueue(greet, person=1, text="x")
        plain = await ledger.enqueue(fails.options(), text="plain")
        await work(poor, plain)
        assert [event_type(each.event) for each in await sealed.history()] == ["queued"]
        job = await sealed.snapshot()
        assert job.state is JobState.QUEUED
        useless = msgspec.structs.replace(job, dispatches=DISPATCHES_MAX + 1)
        verdict = judge(useless, job.dispatch_sequence, holder_lives=False, deliveries=20)
        assert isinstance(verdict, Dispatch), "it waits for as long as no worker has the key"
        async with working(poor, greet), asyncio.timeout(LIMIT_S):
            why = "its values are sealed, and no worker of queue default has the master key m1"
            while explain(job, await find_facts(poor, job)).sentence != why:
                await asyncio.sleep(0.01)
        with pytest.raises(KeyUnavailableError):
            await poor.inputs.get((await sealed.snapshot()).order.input, None, key="person:1/1")
        await work(ledger, sealed)
        assert await sealed.result() == "hello x"


async def test_who_has_neither_master_key_nor_library_passes_on_sealed_jobs(
    connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, connected() as poor:
        await ledger.enqueue(greet, person=1, text="x")
        monkeypatch.setitem(sys.modules, "jobledger.ledger.owner_key", None)  # an import of it fails
        with pytest.raises(KeyUnavailableError, match="this process has no master key"):
            await poor.keys.key("person:1/1")


async def test_a_destroyed_key_is_gone_from_the_disk_and_the_next_one_is_another(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    key = master_file(tmp_path, "m1")
    async with connected(master_key=key) as ledger:
        done, waits = [
            await ledger.enqueue(greet.options(id=each), person=5, text="x") for each in ("d", "w")
        ]
        await work(ledger, done, waits)
        late = await ledger.enqueue(greet.options(id="late"), person=5, text="x")
        keys = ledger.keys
        assert isinstance(keys, OwnerKeys)
        entry = await keys.entry("person:5")
        assert entry is not None
        wrapped = base64.b64encode(entry.entry.wrapped).decode()
        assert sum(found_in(nats_server.directory, wrapped).values()) == 1
        at = datetime(2026, 11, 29, tzinfo=UTC)
        for _ in range(2):
            await keys.destroy("person:5", 1, at)
        assert found_in(nats_server.directory, wrapped) == {}
        with pytest.raises(ErasedError, match="person:5 was erased at 2026-11-29T00:00:00Z"):
            await done.result()
        await work(ledger, late)
        assert (await late.snapshot()).cancel_reason == "erased"
        back = await ledger.enqueue(greet.options(id="back"), person=5, text="x")
        assert (await back.snapshot()).order.key == "person:5/2"


async def test_a_death_between_marker_and_deletion_leaves_a_key_that_nobody_gets(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = master_file(tmp_path, "m1")
    async with connected(master_key=key) as one, connected(master_key=key) as two:
        keys, others = one.keys, two.keys
        assert isinstance(keys, OwnerKeys)
        made = await asyncio.gather(keys.key_for("person:6"), others.key_for("person:6"))
        assert made[1].unseal("value", made[0].seal("value", b"{}")) == b"{}"
        entry = await keys.entry("person:6")
        assert entry is not None
        wrapped = base64.b64encode(entry.entry.wrapped).decode()

        async def dies(_: int) -> None:
            raise RuntimeError("killed")

        with monkeypatch.context() as patched:
            patched.setattr(keys, "_erase", dies)
            with pytest.raises(RuntimeError):
                await keys.destroy("person:6", 1, datetime.now(UTC))
        with pytest.raises(ErasedError):
            await keys.key("person:6/1")
        await keys.destroy("person:6", 1, datetime.now(UTC))
        assert found_in(nats_server.directory, wrapped) == {}


PROGRAM_TEXT = """
import base64, json, sys

def turned(text):
    return base64.b64encode(base64.b64decode(text)[::-1]).decode()

for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "wrap":
        print(json.dumps({"master": "k1", "wrapped": turned(asked["secret"])}), flush=True)
    elif asked["do"] == "unwrap":
        print(json.dumps({"secret": turned(asked["wrapped"])}), flush=True)
    else:
        print(json.dumps({"error": "no"}), flush=True)
"""


async def test_a_program_may_have_the_master_keys(connected: Connect, tmp_path: Path) -> None:
    (tmp_path / "kms.py").write_text(PROGRAM_TEXT)
    source = f"exec:{sys.executable} {tmp_path / 'kms.py'}"
    async with connected(master_key=source) as ledger, connected(master_key=source) as other:
        job = await ledger.enqueue(greet, person=1, text="x")
        await work(other, job)
        assert await job.result() == "hello x"
    async with connected(master_key="exec:/nowhere/kms") as ledger:
        with pytest.raises(KeyUnavailableError, match="the program of master keys /nowhere/kms"):
            await ledger.enqueue(greet, person=2, text="x")


ECHO_TEXT = """
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"secret": asked["wrapped"]}), flush=True)
"""


async def test_an_answer_that_nobody_waited_for_is_no_answer_to_the_next_question(tmp_path: Path) -> None:
    (tmp_path / "kms.py").write_text(ECHO_TEXT)
    masters = KeyService(f"{sys.executable} {tmp_path / 'kms.py'}")
    try:
        assert await masters.unwrap("k1", b"first", b"") == b"first"
        given_up = asyncio.create_task(masters.unwrap("k1", b"of a", b"a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its question is with the program
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await masters.unwrap("k1", b"of b", b"b") == b"of b"
    finally:
        await masters.close()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("m1 abc", "must be file:PATH, env:NAME or exec:PROGRAM"),
        ("file:/nowhere/k", "cannot be read"),
        ("env:NOT_SET_ANYWHERE", "which is not set"),
    ],
)
async def test_a_wrong_master_key_is_refused_and_not_shown(
    nats_server: EmbeddedServer, source: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        async with connect(nats_server.url, master_key=source):
            pass
    assert "abc" not in str(refused.value)


async def test_a_line_that_is_no_key_is_named_by_its_number_alone(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "k").write_text("m1 secretsecret\n")
    with pytest.raises(ConfigurationError, match="line 1 of the master keys") as refused:
        async with connect(nats_server.url, master_key=f"file:{tmp_path / 'k'}"):
            pass
    assert "secretsecret" not in str(refused.value)


async def test_all_values_can_be_sealed_where_nobody_names_an_owner(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1"), seal="all") as ledger:
        job = await ledger.enqueue(fails, text="x")
        assert (await job.snapshot()).order.key == "ledger:default/1"


async def test_jobs_of_a_schedule_have_its_owner_and_the_same_again_is_the_same(
    connected: Connect, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"input": {"person": 4, "text": WORD}, "on_demand": True}
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        made, again = [
            await ledger.schedules.add("daily", greet.options(metadata={"who": WORD}), **given)
            for _ in range(2)
        ]
        assert again.definition == made.definition
        assert made.definition.order.key == "person:4/1"
        with pytest.raises(ScheduleExistsError):
            await ledger.schedules.add("daily", greet, input={"person": 4, "text": "other"}, on_demand=True)
        job = await ledger.job((await ledger.schedules.trigger("daily")).job_id)
        await work(ledger, job)
        assert await job.result() == f"hello {WORD}"
        async for portion in ledger.log.read_messages():
            assert not [each.subject for each in portion if WORD.encode() in each.data]


async def test_a_route_gives_its_jobs_the_owner_of_the_rule_or_of_the_task(
    connected: Connect, tmp_path: Path
) -> None:
    ruled = RouteRule(name="ruled", task="fails", input={"text": "/text"}, owner={"at": "/who"})
    declared = RouteRule(name="declared", task="greet", input={"text": "/text", "person": "/person"})
    definition = RouteDefinition(scheme="internal", rules=(ruled, declared))
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        async with working(ledger, greet), asyncio.timeout(LIMIT_S):
            while await ledger.find_task("greet") is None:
                await asyncio.sleep(0.01)
        await ledger.routes.set("in", definition)
        owners: list[list[str]] = []
        for data in ({"text": WORD, "who": "person:3", "person": 4}, {"text": WORD}):
            outcome = await ledger.emit("in", data)
            jobs = [await (await ledger.job(each.job)).snapshot() for each in outcome.matched]
            owners.append([job.order.key for job in jobs])
        assert owners == [["person:3/1", "person:4/1"], ["ledger:default/1", "ledger:default/1"]]


async def test_an_owner_needs_the_newest_form_of_the_ledger(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        ledger.form = FORM_FIRST
        with pytest.raises(RefusedError, match=r"jobledger upgrade finish"):
            await ledger.enqueue(greet, person=1, text="x")
        assert isinstance(ledger.keys, OwnerKeys)
        assert await ledger.keys.entry("person:1") is None, "nothing was changed"

"""Signals that no wait can read: refused at each door, and by the wait itself where one got past them; the run waits on."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import httpx
import msgspec
import pytest
from tests.support.dashboard import check_page, token_of
from tests.support.working import LIMIT_S, types, working

from jobledger.audit.verify import verify
from jobledger.cli.main import run as run_command
from jobledger.ledger import InvalidInputError, JobHandle, JobState, Ledger, Run, Signal, workflow
from jobledger.ledger.model.commands import GiveSignal
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    yes: bool
    by: str = ""


word = Signal("word", str)
count: Signal[int] = Signal("count", Annotated[int, msgspec.Meta(ge=1)])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # an annotated type
amount = Signal("amount", float)
flag = Signal("flag", bool)
size: Signal[str] = Signal("size", Literal["s", "m"])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # no class
day: Signal[datetime] = Signal("day", Annotated[datetime, msgspec.Meta(tz=True)])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # an annotated type
key = Signal("key", UUID)
names = Signal("names", list[str])
votes = Signal("votes", dict[str, int])
go = Signal("go", type(None))
approved = Signal("approved", Answer)
ALL: tuple[Any, ...] = (word, count, amount, flag, size, day, key, names, votes, go, approved)
SIGNALS: dict[str, Signal[Any]] = {each.name: each for each in ALL}

# Signal; values that it cannot have; one that it can have.
TABLE: list[tuple[str, tuple[str, ...], str]] = [
    ("word", ("1", "null", '{"by":"x"}', "[]", "true"), '"yes"'),
    ("count", ("0", "1.5", '"1"', "null", "[1]", "true"), "7"),
    ("amount", ('"1"', "null", "{}", "false"), "1.5"),
    ("flag", ("0", "null", '"true"', '{"by":"x"}'), "true"),
    ("size", ('"l"', "null", "1", "{}"), '"m"'),
    ("day", ('"soon"', "null", "[]", "true"), '"2026-01-02T03:04:05Z"'),
    ("key", ('"x"', "null", "7"), '"9f86d081-884c-4d65-9a2f-eaa0c55ad015"'),
    ("names", ('"ada"', "null", "[1]", "{}"), '["ada"]'),
    ("votes", ('{"ada":"x"}', "null", "[1]", "3"), '{"ada":1}'),
    ("go", ("0", "{}", '"now"'), "null"),
    ("approved", ('{"by":"x"}', "null", '{"yes":"true"}', '{"yes":true,"no":1}', "[true]", "{}"), '{"yes":true,"by":"ann"}'),
]  # fmt: skip


@workflow(queue="orders", max_attempts=2, signals=list(SIGNALS.values()))
async def ask(run: Run, name: str) -> Any:
    return msgspec.to_builtins(await run.wait(SIGNALS[name]))


Send = Callable[[JobHandle[Any], str, str], Coroutine[Any, Any, bool]]


async def in_state(job: JobHandle[Any], state: JobState) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await job.state() is not state:
            await asyncio.sleep(0.005)


def doors(http: httpx.AsyncClient, ledger: Ledger, server: EmbeddedServer) -> dict[str, Send]:
    """Return each way to send a signal; each says whether the value was taken, and refuses as its kind of door does."""

    async def by_command(job: JobHandle[Any], name: str, value: str) -> bool:
        where = ("--url", server.url, "--environment", ledger.config.environment)
        words = ("jobs", "signal", job.id, name, "--queue", "orders", "--value", value, *where)
        code = await asyncio.to_thread(run_command, words)
        assert code in (0, 2)
        return code == 0

    async def by_http(job: JobHandle[Any], name: str, value: str) -> bool:
        heads = {"content-type": "application/json"}
        answer = await http.post(f"/v1/jobs/orders/{job.id}/signals/{name}", content=value, headers=heads)
        assert answer.status_code in (202, 400), answer.text
        assert answer.status_code == 202 or answer.json()["code"] == "JOB_INVALID_INPUT"
        return answer.status_code == 202

    async def by_form(job: JobHandle[Any], name: str, value: str) -> bool:
        there = f"/jobs/orders/{job.id}"
        token = token_of((await http.get(there)).text)
        answer = await http.post(f"{there}/signal", data={"token": token, "name": name, "value": value})
        assert answer.status_code in (303, 400), answer.text
        return answer.status_code == 303

    return {"command": by_command, "http": by_http, "form": by_form}


async def test_a_wrong_value_is_refused_at_every_door_and_the_run_waits_for_a_right_one(
    http: httpx.AsyncClient, ledger: Ledger, nats_server: EmbeddedServer
) -> None:
    sends = doors(http, ledger, nats_server)
    async with working(ledger, ask):
        runs = {name: await ledger.enqueue(ask.options(id=name), name) for name, _, _ in TABLE}
        for name, wrong, _ in TABLE:
            await in_state(runs[name], JobState.WAITING)
            for value in wrong:
                for door in sends:
                    assert not await sends[door](runs[name], name, value), (door, name, value)
            assert await types(runs[name]) == ["queued", "started", "step_started", "paused"]
        for number, (name, _, right) in enumerate(TABLE):
            assert await list(sends.values())[number % 3](runs[name], name, right), name
            assert await runs[name].result(timeout_s=LIMIT_S) == msgspec.json.decode(right)
    assert (await verify(ledger.log)).sound


async def test_what_gets_past_the_doors_is_refused_by_the_wait_and_the_run_waits_on(ledger: Ledger) -> None:
    async with working(ledger, ask):
        runs = {name: await ledger.enqueue(ask.options(id=name), name) for name, _, _ in TABLE}
        for name, wrong, right in TABLE:
            for value in (*wrong, right):
                await ledger.execute(runs[name].ref, GiveSignal(name=name, value=msgspec.Raw(value.encode())))
        for name, wrong, right in TABLE:
            assert await runs[name].result(timeout_s=LIMIT_S) == msgspec.json.decode(right)
            assert (await types(runs[name])).count("signal_refused") == len(wrong)
            *refused, taken = (await runs[name].snapshot()).signals
            assert all(each.refused and not each.taken_by for each in refused)
            assert (taken.refused, taken.taken_by) == ("", name)
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_run_that_refused_a_signal_parks_again_and_its_page_says_so(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    async with working(ledger, ask):
        job = await ledger.enqueue(ask.options(id="approved"), "approved")
        await in_state(job, JobState.WAITING)
        await ledger.execute(
            job.ref, GiveSignal(name="approved", id="click", value=msgspec.Raw(b'{"by":"x"}'))
        )
        async with asyncio.timeout(LIMIT_S):
            while (await types(job))[-3:] != ["started", "signal_refused", "paused"]:
                await asyncio.sleep(0.005)
        assert (await job.snapshot()).attempts_left == 2
        there = "/jobs/orders/approved"
        page = await http.get(there)
        check_page(page)
        text = html.unescape(page.text)
        assert (
            "refused: the value of signal approved is no Answer: Object missing required field `yes`" in text
        )
        assert "It waits for approved" in text
        assert '<select name="arg.yes" required><option value=""></option>' in page.text
        assert "was refused: the value of signal approved is no Answer" in text  # what it waits for
        token = token_of(page.text)
        form = {"token": token, "name": "approved"}
        for nothing in (form, {**form, "arg.yes": ""}, {**form, "arg.by": "ann"}, {**form, "value": ""}):
            answer = await http.post(f"{there}/signal", data=nothing)
            assert answer.status_code == 400, answer.text
        assert await ledger.signal(job, approved, Answer(yes=True), id="click") is not None
        assert await job.result(timeout_s=LIMIT_S) == {"yes": True, "by": ""}
    assert (await verify(ledger.log)).sound


async def test_the_fields_of_a_form_send_what_was_chosen(http: httpx.AsyncClient, ledger: Ledger) -> None:
    async with working(ledger, ask):
        for name, fields, said in (
            ("approved", {"arg.yes": "false", "arg.by": "ann"}, {"yes": False, "by": "ann"}),
            ("flag", {"arg.": "true"}, True),
            ("count", {"arg.": "3"}, 3),
            ("size", {"arg.": "s"}, "s"),
            ("go", {}, None),
            ("votes", {"value": '{"ada":1}'}, {"ada": 1}),
        ):
            job = await ledger.enqueue(ask.options(id=name), name)
            await in_state(job, JobState.WAITING)
            page = (await http.get(f"/jobs/orders/{name}")).text
            for field in fields:
                assert f'name="{field}"' in page, name
            sent = {"token": token_of(page), "name": name, **fields}
            answer = await http.post(f"/jobs/orders/{name}/signal", data=sent)
            assert answer.status_code == 303, answer.text
            assert await job.result(timeout_s=LIMIT_S) == said


async def test_a_client_with_another_type_is_refused_and_one_that_is_not_announced_is_let_through(
    ledger: Ledger,
) -> None:
    other = Signal("flag", dict[str, str])
    async with working(ledger, ask):
        job = await ledger.enqueue(ask.options(id="flag"), "flag")
        await in_state(job, JobState.WAITING)
        with pytest.raises(
            InvalidInputError, match="is not what workflow ask waits for: Expected `bool`, got `object`"
        ):
            await ledger.signal(job, other, {"by": "x"})
        with pytest.raises(InvalidInputError, match="is not what workflow ask waits for"):
            await ledger.signal("flag-2", other, {"by": "x"}, start=ask.with_input("flag"))
        with pytest.raises(Exception, match="flag-2"):
            await ledger.job("flag-2")
        assert await ledger.signal(job, Signal("unknown", int), 1)
        assert await ledger.signal(job, flag, False)
        assert await job.result(timeout_s=LIMIT_S) is False

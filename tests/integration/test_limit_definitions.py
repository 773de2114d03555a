"""Definitions of limits, from the command line: set, show, list, remove, and what is refused."""

from __future__ import annotations

import asyncio
import re

import anyio
import anyio.to_thread
import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.limits import LIMIT_S
from tests.support.tables import each_row
from tests.support.working import becomes, ended, until, working

from jobledger.admin.limits import set_limit
from jobledger.ledger import JobState, Ledger, Limit, task
from jobledger.ledger.model.errors import ForeignLoopError
from jobledger.ledger.model.limits.definition import LIMIT, Override, Terms
from jobledger.ledger.model.named_chain import look


def test_a_person_sets_changes_lists_shows_and_removes_a_limit(cli: CommandLine) -> None:
    def run(*words: str) -> str:
        found = cli.run("limits", *words, *cli.where)
        assert found.code == 0, found
        return found.out

    assert "no limit is set" in run("list")
    assert run("set", "tenant", "--slots", "5") == "limit tenant is: slots 5 (before: not set)\n"
    said = run("set", "tenant", "--rate", "100", "--per", "1m", "--burst", "10", "--reason", "their API")
    assert said == "limit tenant is: slots 5, 100 per minute, burst 10 (before: slots 5)\n"
    planned = run("set", "tenant:acme", "--slots", "20", "--plan")
    assert planned.startswith(
        "limit tenant:acme would be: slots 20, 100 per minute, burst 10 (before: slots 5,"
    )
    assert planned.endswith("nothing was changed\n")
    run("set", "tenant:acme", "--slots", "20", "--weight", "2.5")
    run("set", "task:render", "--slots", "2")

    listed = run("list")
    assert [line.split("  ")[0] for line in listed.splitlines()[2:]] == [
        "task",
        "task:render",
        "tenant",
        "tenant:acme",
    ]
    rows = cli.run("limits", "list", "--json", *cli.where).lines
    assert [(row["name"], row["key"], row["slots"], row["weight"]) for row in rows] == [
        ("task", "", None, 1.0),
        ("task", "render", 2, 1.0),
        ("tenant", "", 5, 1.0),
        ("tenant", "acme", 20, 2.5),
    ]
    assert "  for  " not in listed
    said = run("set", "tenant", "--queue", "mail", "--queue", "bill*", "--task", "send")
    assert said.startswith(
        "limit tenant is: slots 5, 100 per minute, burst 10; for queues bill*, mail; tasks send (before:"
    )
    assert "queues bill*, mail; tasks send" in run("list")
    shown = run("show", "tenant")
    assert "for jobs of  queues bill*, mail; tasks send\n" in shown
    assert "slots 5, 100 per minute, burst 10" in shown
    assert "acme   slots 20, weight 2.5" in shown
    assert shown.index("key acme: slots 20") < shown.rindex("their API")  # the newest first
    (as_json,) = cli.run("limits", "show", "tenant:acme", "--json", *cli.where).lines
    assert (as_json["terms"]["slots"], as_json["overrides"]["acme"]["slots"]) == (20, 20)
    assert as_json["terms"]["queues"] == ["bill*", "mail"]
    assert run("set", "tenant", "--queue", "none", "--task", "none").startswith(
        "limit tenant is: slots 5, 100 per minute, burst 10 (before:"
    )

    assert run("set", "tenant", "--slots", "none", "--rate", "none") == (
        "limit tenant is: burst 10 (before: slots 5, 100 per minute, burst 10)\n"
    )
    assert run("remove", "tenant:acme").startswith("limit tenant:acme is: burst 10 (before: slots 20")
    assert run("remove", "tenant").startswith("limit tenant is removed")
    assert [row["name"] for row in cli.run("limits", "list", "--json", *cli.where).lines] == ["task", "task"]
    assert "nothing: jobs that name it stay held" in run("show", "tenant")
    tail = cli.run("events", "tail", "--type", "limit.set", "--type", "limit.removed", *cli.where)
    assert tail.code == 0, tail.err
    assert "limit tenant" in tail.out
    checked = cli.run("audit", "verify", *cli.where)
    assert checked.code == 0, checked.out
    assert cli.run("projection", "verify", *cli.where).code == 0


@each_row(
    ("words", "code", "sentence"),
    [
        (("set", "tenant"), 2, "say what is to hold: slots, or rate"),
        (("set", "tenant", "--slots", "many"), 2, "--slots 'many' is not a whole number and not none"),
        (
            ("set", "tenant", "--slots", "-1"),
            2,
            "slots must be a whole number from 0 to 9,223,372,036,854,775,807",
        ),
        (
            ("set", "tenant", "--slots", "9" * 20),
            2,
            "from 0 to 9,223,372,036,854,775,807, got 99999999999999999999",
        ),
        (("set", "tenant", "--rate", "nan"), 2, "rate must be a number above 0"),
        (("set", "tenant", "--mode", "wait"), 2, "--mode must be queue, newest, replace or drop, got 'wait'"),
        (("set", "ten ant", "--slots", "1"), 2, "name of a limit 'ten ant' is not valid"),
        (("set", "tenant:a b", "--slots", "1"), 2, "key of limit tenant must be 1 to 128 printable"),
        (
            ("set", "tenant:acme", "--slots", "1"),
            4,
            "limit tenant is not set, so nothing can differ for acme",
        ),
        (("set", "tenant:acme", "--queue", "mail"), 2, "that is said of all keys of a limit at once"),
        (("set", "queue", "--task", "send"), 2, "that is said of all keys of a limit at once"),
        (("set", "tenant", "--queue", "a b"), 2, "queues must be patterns of 1 to 64"),
        (("remove", "tenant"), 3, "there is no limit tenant: `jobledger limits list`"),
        (("remove", "tenant:acme"), 3, "there is no limit tenant"),
        (("show", "tenant"), 3, "there is no limit tenant"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(
    cli: CommandLine, words: tuple[str, ...], code: int, sentence: str
) -> None:
    found = cli.run("limits", *words, *cli.where)
    assert (found.code, found.out) == (code, "")
    assert sentence in found.err
    assert cli.run("limits", "list", "--json", *cli.where).out == ""


_OPEN = asyncio.Event()


@task(queue="keyed", limits=(Limit("customer", key="customer", slots=3),))
async def keyed(customer: str) -> None:
    await _OPEN.wait()


def test_a_running_worker_whose_code_differs_is_told_in_its_log_in_lists_and_to_who_changes_the_limit(
    cli: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    """The definition is the code's until somebody takes it; six jobs of two keys are no `6 of 3`."""

    def run(*words: str) -> Answer:
        found = cli.run("limits", *words, *cli.where)
        assert found.code == 0, found
        return found

    async def scene(ledger: Ledger) -> None:
        _OPEN.clear()
        async with working(ledger, keyed):
            jobs = [await ledger.enqueue(keyed, customer=name) for name in "aaabbb"]
            for job in jobs:
                await becomes(job, JobState.RUNNING)
            await anyio.to_thread.run_sync(walk)
            _OPEN.set()
            for job in jobs:
                await ended(job)
        async with working(ledger, keyed.options(limits=()).unpacked[0]):
            await until(lambda: "limit customer is slots 7" in caplog.text)

    def walk() -> None:
        assert "6 by 2 keys" in run("list").out
        (row,) = run("list", "--json").lines
        assert (row["taken"], row["keys"], row["most"], row["in_code"]) == (6, 2, 3, [])
        said = run("set", "customer:b", "--slots", "0")
        assert "the code does not change it" not in said.err  # it had nothing to say of this key
        said = run("set", "customer", "--slots", "5")
        assert "the code does not change it from here on; `jobledger limits remove customer`" in said.err
        listed = run("list").out
        assert re.search(r"the code of \S+ has customer as slots 3", listed), listed
        back = run("remove", "customer")
        assert "limit customer is: slots 3 (before: slots 5)" in back.out
        assert "that is as the code has it" in back.err
        rows = run("list", "--json").lines
        assert [(row["key"], row["slots"], row["source"]) for row in rows] == [
            ("", 3, "code"),
            ("b", 0, "operator"),
        ]
        run("set", "customer", "--slots", "7")

    cli.with_ledger(scene)
    assert cli.run("audit", "verify", *cli.where).code == 0
    assert cli.run("projection", "verify", *cli.where).code == 0


async def test_changes_made_at_once_are_all_kept(ledger: Ledger) -> None:
    await set_limit(ledger, "tenant", {"slots": 1}, by="p")
    async with anyio.create_task_group() as group:
        for number in range(8):

            async def one(number: int = number) -> None:
                await set_limit(ledger, f"tenant:t{number}", {"slots": number}, by=f"p{number}")

            group.start_soon(one)
    limit = (await look(ledger.log, LIMIT, "tenant")).state
    assert limit is not None
    assert dict(limit.overrides) == {f"t{number}": Override(slots=number) for number in range(8)}
    assert (limit.of("t3"), limit.of("other")) == (Terms(slots=3), Terms(slots=1))


@task(queue="elsewhere", limits=(Limit("elsewhere", slots=1),))
async def elsewhere() -> None: ...


async def test_a_limited_job_of_another_loop_is_refused_before_its_limit_is_asked_for(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def enqueue() -> None:
        asyncio.run(asyncio.wait_for(ledger.enqueue(elsewhere), LIMIT_S))

    with pytest.raises(ForeignLoopError):
        await anyio.to_thread.run_sync(enqueue)
    assert "could not be set" not in caplog.text
    assert (await look(ledger.log, LIMIT, "elsewhere")).state is None

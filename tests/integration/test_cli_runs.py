"""`jobledger jobs show` with its sections, `signal`, `pause` and `resume` on runs in each kind of wait, on a real server."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from tests.support import waiting_runs as runs
from tests.support.command_line import Answer, CommandLine
from tests.support.runs import step
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import JobState, Ledger
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Complete,
    CompleteStep,
    DeadLetter,
    Enqueue,
    Join,
    Pause,
    RefuseSignal,
    RequestPause,
    StartStep,
)
from jobledger.ledger.model.events import ChildOrder, Order, PayloadRef
from jobledger.ledger.sent_signals import give_signal
from jobledger.ledger.server import EmbeddedServer

Make = Callable[..., Coroutine[Any, Any, None]]


class Runs(CommandLine):
    """The command line, its projection in the test's folder."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(url, capsys)
        self._projection = folder / "rows.db"

    def jobs(self, *words: str) -> Answer:
        return self.run("jobs", *words, *self.where, "--projection", str(self._projection))

    def make(self, make: Make, job_id: str, **options: Any) -> None:
        self.with_ledger(lambda ledger: make(ledger, job_id, **options))

    def state(self, job_id: str) -> str:
        async def look(ledger: Ledger) -> str:
            return await (await ledger.job(job_id)).state()

        return self.with_ledger(look)


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Runs:
    return Runs(nats_server.url, capsys, tmp_path)


def why(cli: Runs, job_id: str) -> dict[str, Any]:
    (answer,) = cli.jobs("show", "--why", job_id, "--json").lines
    return answer


def test_why_names_the_signal_and_what_it_says_to_type_ends_the_wait(cli: Runs) -> None:
    cli.make(runs.for_signal, "order-77")
    found = why(cli, "order-77")
    assert found["sentence"].startswith("it waits for signal 'approved' (step 'approved', sequence 4) until")
    assert "): nobody has sent it. It holds no worker" in found["sentence"]
    assert found["hint"] == "jobledger jobs signal order-77 approved --value '...'"
    assert [(each["awaits"], each["step"], each["sequence"]) for each in found["waits"]] == [
        ("signal", "approved", 4)
    ]
    shown = cli.jobs("show", "--why", "order-77").out
    assert "the events that say so" in shown
    assert "step started" in shown.replace("_", " ")

    told = cli.jobs("signal", "order-77", "approved", "--value", '{"yes":true}', "--id", "click-1")
    assert (told.code, told.out) == (0, "run order-77 was sent signal approved; it is queued\n")
    again = cli.jobs("signal", "order-77", "approved", "--id", "click-1")
    assert (again.code, again.out) == (
        0,
        "run order-77 was sent signal 'click-1' before: nothing was changed\n",
    )
    (signal,) = cli.jobs("show", "--steps", "order-77", "--json").lines[0]["signals"]
    assert (signal["name"], signal["id"], signal["taken_by"]) == ("approved", "click-1", None)
    assert cli.state("order-77") == "queued"


def test_a_signal_that_its_wait_refuses_at_once_is_told(cli: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.make(runs.for_signal, "order-77")

    async def refused_at_once(ledger: Ledger, *words: Any, **more: Any) -> bool:
        is_new = await give_signal(ledger, *words, **more)
        await runs.do(ledger, "order-77", Claim(worker="w1", lease_s=600))
        (sent,) = (await (await ledger.job("order-77")).snapshot()).signals
        refusal = RefuseSignal(
            epoch=0, step="approved", name="approved", signal=sent.sequence, reason="no Answer"
        )
        await runs.do(ledger, "order-77", refusal)
        await runs.do(ledger, "order-77", Pause(epoch=0, steps=("approved",)))
        return is_new

    monkeypatch.setattr("jobledger.admin.run_acts.give_signal", refused_at_once)
    told = cli.jobs("signal", "order-77", "approved", "--value", "1")
    said = "run order-77 was sent signal approved; its wait refused that: no Answer; it waits on\n"
    assert (told.code, told.out) == (0, said)


def test_commands_name_the_queue_where_it_was_named(cli: Runs) -> None:
    cli.make(runs.for_time, "order-77")
    (found,) = cli.jobs("show", "--why", "order-77", "--queue", runs.QUEUE, "--json").lines
    assert found["hint"] == "jobledger jobs cancel order-77 --queue orders"
    assert found["waits"][0]["hint"] == found["hint"]


def test_a_signal_that_nobody_waits_for_is_kept_and_what_is_awaited_is_said(cli: Runs) -> None:
    cli.make(runs.for_signal, "order-77")
    told = cli.jobs("signal", "order-77", "aproved")
    assert told.out == "run order-77 was sent signal aproved; it is kept until the run waits for that\n"
    assert "the run waits for approved now" in told.err
    for words, code, said in (
        (("signal", "order-77", "approved", "--value", "{"), 2, "value of signal approved"),
        (("signal", "order-77", "no name"), 2, "signal name"),
        (("signal", "nobody", "approved"), 3, "no job"),
    ):
        answer = cli.jobs(*words)
        assert (answer.code, said in answer.err) == (code, True), answer.err
    assert cli.state("order-77") == "waiting"


def test_a_person_pauses_and_resumes_a_run_which_then_waits_as_before(cli: Runs) -> None:
    cli.make(runs.for_signal, "order-77")
    told = cli.jobs("pause", "order-77", "--reason", "the bank is closed")
    assert told.out == "job order-77 is paused; `jobledger jobs resume order-77` lets it go on\n"
    found = why(cli, "order-77")
    assert found["sentence"].startswith(
        "a person paused it (the bank is closed), and it goes on once it is resumed; after that it waits for signal 'appr"
    )
    assert found["hint"] == "jobledger jobs resume order-77"
    (listed,) = cli.jobs("list", "--json").lines
    assert listed["awaiting"] == "operator"
    again = cli.jobs("pause", "order-77")
    assert (again.code, "is paused already" in again.err) == (4, True), again.err
    told = cli.jobs("resume", "order-77")
    assert told.out == "job order-77 waits as before it was paused: `jobledger jobs show order-77 --why`\n"
    assert why(cli, "order-77")["hint"].startswith("jobledger jobs signal order-77 approved")
    assert cli.jobs("resume", "order-77").code == 4


def test_a_signal_that_came_during_a_persons_pause_lets_the_run_go_on_once_it_is_resumed(cli: Runs) -> None:
    cli.make(runs.for_signal, "order-77")
    cli.jobs("pause", "order-77")
    cli.jobs("signal", "order-77", "approved", "--value", "true")
    assert "it was sent at sequence 7" in why(cli, "order-77")["sentence"]
    assert cli.jobs("resume", "order-77", "--json").lines[0]["status"] == "queued"


def test_a_run_that_runs_is_asked_to_pause_and_why_names_the_step_it_is_in(cli: Runs) -> None:
    async def make(ledger: Ledger) -> None:
        await runs.running(ledger, "order-77")
        await runs.do(ledger, "order-77", step(StartStep, "wire", kind="once"))

    cli.with_ledger(make)
    assert "which was asked to pause it" in cli.jobs("pause", "order-77").out
    assert ", in step wire, and was asked to pause" in why(cli, "order-77")["sentence"]
    assert cli.jobs("resume", "order-77").code == 4


def test_a_plain_job_that_waits_is_paused_and_queued_again(cli: Runs) -> None:
    cli.make(runs.plain, "m-1")
    assert cli.jobs("pause", "m-1").code == 0
    assert why(cli, "m-1")["hint"] == "jobledger jobs resume m-1"
    assert cli.jobs("resume", "m-1").out == "job m-1 is queued in orders\n"


def test_children_go_on_with_the_run_that_is_resumed(cli: Runs) -> None:
    async def paused(ledger: Ledger) -> None:
        await runs.for_children(ledger, "sync-9")

    cli.with_ledger(paused)
    cli.jobs("pause", "sync-9")

    async def follow(ledger: Ledger) -> JobState:
        child = await ledger.job("sync-9-2-1")
        await ledger.execute(child.ref, RequestPause(reason="its run sync-9 is paused"))
        return await child.state()

    assert cli.with_ledger(follow) == "paused"
    cli.jobs("resume", "sync-9")
    assert (cli.state("sync-9-2-1"), cli.state("sync-9")) == ("queued", "waiting")


def test_steps_the_tree_and_the_list_are_readable_at_80_columns(
    cli: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.make(runs.for_signal, "order-77")

    async def make(ledger: Ledger) -> None:
        await runs.for_children(ledger, "sync-9", count=40, made=12)
        for item in range(3):
            ref = await runs.child(ledger, "sync-9", 12 + item) if item > 5 else None
            job_id = f"sync-9-2-{item}"
            await runs.do(ledger, job_id, Claim(worker="w3", lease_s=600), queue="pages")
            if item == 0:
                await runs.do(ledger, job_id, Complete(epoch=0), queue="pages")
                await runs.do(ledger, "sync-9", Join(step="pages", completed=((0, 0),)))
            elif item == 1:
                dead = DeadLetter(reason="rejected", epoch=0, error=runs.BOOM)
                await runs.do(ledger, job_id, dead, queue="pages")
                await runs.do(ledger, "sync-9", Join(step="pages", failed=((1, 1),)))
            assert ref is None

    cli.with_ledger(make)
    on_a_terminal(monkeypatch)
    tree = unstyled(cli.jobs("show", "order-77", "--tree").out)
    assert tree[0].startswith("order-77  order v2  waiting")
    assert [line[:20].rstrip() for line in tree[1:]] == ["├ ✓ charge", "├ … wait approved", "└ · 1 undo"]
    assert "2 tries   1.2 s" in tree[1]
    assert re.search(r"wait approved +for \d", tree[2]), "how long it has waited"
    tree = unstyled(cli.jobs("show", "sync-9", "--tree").out)
    assert "2 of 40 ended, 11 open, 1 not completed" in tree[2].replace("  ", " ")
    assert [line.split()[1] for line in tree[3:5]] == ["✗", "▶"]
    assert tree[-1].split() == ["└", "and", "3", "more"]
    for words in (
        ("show", "--steps", "sync-9"),
        ("show", "--why", "sync-9"),
        ("list",),
        ("show", "--graph", "sync-9"),
        ("show", "sync-9", "--tree"),
    ):
        answer = cli.jobs(*words)
        assert answer.code == 0, answer.err
        assert max(map(len, unstyled(answer.out))) <= 80, answer.out
    listed = [line["id"] for line in cli.jobs("list", "--json").lines]
    assert sorted(listed) == ["order-77", "sync-9"]
    assert len(cli.jobs("list", "--json", "--members").lines) == 14


def test_the_graph_of_a_run_in_each_format(cli: Runs) -> None:
    cli.make(runs.for_graph, "nightly-1")
    (graph,) = cli.jobs("show", "--graph", "nightly-1", "--json").lines
    assert graph["edges"] == [
        ["1", "2"],
        ["2", "2.0"],
        ["2.0", "2.1"],
        ["2.0", "2.2"],
        ["2.1", "2.3"],
        ["2.2", "2.3"],
    ]
    assert [(node["id"], node["status"]) for node in graph["nodes"]] == [
        ("1", "completed"),
        ("2", "started"),
        ("2.0", "open"),
        ("2.1", "waiting"),
        ("2.2", "waiting"),
        ("2.3", "waiting"),
    ]
    text = cli.jobs("show", "--graph", "nightly-1").out.splitlines()
    assert text[-2].split() == ["2.2", "…", "fetch#2", "waiting", "2.0"]
    assert text[-1].split() == ["2.3", "…", "merge", "waiting", "2.1,", "2.2"]
    mermaid = cli.jobs("show", "--graph", "nightly-1", "--format", "mermaid").out.splitlines()
    assert mermaid[0] == "flowchart TD"
    assert "  n2_1 --> n2_3" in mermaid
    assert '  n1["✓ charge"]:::completed' in mermaid
    drawing = ET.fromstring(cli.jobs("show", "--graph", "nightly-1", "--format", "svg").out)
    kinds = [child.tag.rpartition("}")[2] for child in drawing]
    assert (kinds.count("rect"), kinds.count("line"), kinds.count("text")) == (6, 6, 6)
    assert cli.jobs("show", "--graph", "nightly-1", "--format", "gif").code == 2
    then = cli.jobs("show", "--graph", "nightly-1", "--format", "svg", "--sequence", "1")
    assert "(stream sequence 1)" in then.err
    assert [child.tag for child in ET.fromstring(then.out)] == [], "its first event records no step"


def test_one_section_of_a_job_is_shown_at_a_time(cli: Runs) -> None:
    cli.make(runs.for_children, "sync-9")
    for words, said in (
        (("--why", "--steps"), "--why and --steps each show a section of the job: give one of them"),
        (("--results",), "--results is about --steps: give both"),
        (("--graph", "--results"), "--results is about --steps: give both"),
        (("--format", "svg"), "--format is about --graph: give both"),
        (("--why", "--archive", "."), "--why shows what the ledger holds: leave out --archive"),
        (("--tree", "--archive", "."), "--tree shows what the ledger holds: leave out --archive"),
    ):
        answer = cli.jobs("show", "sync-9", *words)
        assert (answer.code, answer.out) == (2, ""), answer
        assert said in answer.err


def test_children_that_nobody_counts_any_more_are_not_called_open(cli: Runs) -> None:
    cli.make(runs.for_children, "sync-9")
    assert "0 of 4 ended, 3 open" in unstyled(cli.jobs("show", "sync-9", "--tree").out)[2].replace("  ", " ")
    assert cli.jobs("cancel", "sync-9").code == 0
    for shown in (cli.jobs("show", "sync-9", "--tree").out, cli.jobs("show", "--steps", "sync-9").out):
        line = next(each for each in unstyled(shown) if "pages" in each)
        assert "0 of 4 ended before the run did" in " ".join(line.split())


def test_a_run_shows_its_deadline_until_it_has_ended(cli: Runs) -> None:
    async def make(ledger: Ledger, job_id: str) -> None:
        ref = runs.ref_of(job_id)
        await ledger.execute(ref, Enqueue(ref=ref, task="order", order=Order(deadline_s=3_600.0)))

    cli.make(make, "late-1")
    (shown,) = cli.jobs("show", "late-1", "--json").lines
    created, deadline = (datetime.fromisoformat(shown[name]) for name in ("created_at", "deadline_at"))
    assert deadline - created == timedelta(hours=1)
    assert any(line.split()[:1] == ["deadline"] for line in cli.jobs("show", "late-1").out.splitlines())
    assert cli.jobs("cancel", "late-1").code == 0
    (shown,) = cli.jobs("show", "late-1", "--json").lines
    assert (shown["status"], shown["deadline_at"]) == ("cancelled", None)


def test_steps_show_what_they_were_given_and_returned(cli: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def make(ledger: Ledger) -> None:
        await runs.for_children(ledger, "sync-9", count=40, made=1)
        large = PayloadRef(sha256="a" * 64, size_bytes=3 << 20)
        await runs.running(ledger, "order-77")
        await runs.do(ledger, "order-77", step(CompleteStep, "report", result_ref=large))
        hostile = msgspec.Raw(msgspec.json.encode("\x1b[31m" + "x" * 500))
        await runs.do(ledger, "order-77", step(CompleteStep, "page", result=hostile))
        order = ChildOrder(task="fetch", queue="pages")
        started = step(
            StartStep, "fetch", kind="call", target="fetch", order=order, items=msgspec.Raw(b'[{"n":1}]')
        )
        await runs.do(ledger, "order-77", started)

    cli.with_ledger(make)
    (plain,) = cli.jobs("show", "--steps", "order-77", "--json").lines
    assert "values" not in plain["steps"][0]
    (found,) = cli.jobs("show", "--steps", "order-77", "--results", "--json").lines
    values = {each["key"]: each["values"] for each in found["steps"]}
    assert (values["charge"]["result"], values["charge"]["input"]) == ("ch_77", None)
    assert values["page"]["result"] == "\x1b[31m" + "x" * 500, "whole"
    assert values["report"]["result_ref"] == {"sha256": "a" * 64, "size_bytes": 3 << 20}
    assert (values["fetch"]["input"], values["fetch"]["result"]) == ({"n": 1}, None)
    on_a_terminal(monkeypatch)
    shown = unstyled(cli.jobs("show", "--steps", "order-77", "--results").out)
    assert max(map(len, shown)) <= 80, shown
    lines = [line.split(maxsplit=2) for line in shown[shown.index("values") :]]
    assert ["charge", "result", '"ch_77"'] in lines
    assert ["fetch", "input", '{"n":1}'] in lines
    assert ["report", "result", "3.0 MiB beside the ledger, sha256 aaaaaaaaaaaa..."] in lines
    assert unstyled(cli.jobs("show", "--steps", "sync-9", "--results").out)[-1].startswith(
        'pages    input    [{"n":0},'
    )


def test_a_job_without_steps_says_so(cli: Runs) -> None:
    cli.make(runs.plain, "m-1")
    assert cli.jobs("show", "--steps", "m-1").out == "job m-1 has recorded no step\n"
    assert cli.jobs("show", "--graph", "m-1").out == "job m-1 has recorded no step\n"
    assert "it has recorded no step" in cli.jobs("show", "m-1", "--tree").out
    assert cli.jobs("show", "nobody", "--tree").code == 3


def test_a_rerun_is_planned_made_once_and_refused_with_the_next_command(cli: Runs) -> None:
    cli.make(runs.for_signal, "order-77")
    ask = ("rerun", "order-77", "--from", "approved")
    planned = cli.jobs(*ask, "--plan")
    assert (planned.code, "nothing was changed" in planned.out) == (0, True)
    (plan,) = cli.jobs(*ask, "--plan", "--json").lines
    assert [step["step"] for step in plan["copied"]] == ["charge"]
    assert (plan["not_copied"], plan["rerun_of"]["steps"]) == (["approved"], 1)
    made = cli.jobs(*ask, "--id", "again", "--input", '{"order": "78"}')
    said = "job again begins as order-77 did: it copies 1 step and goes on with approved\n"
    assert (made.code, made.out) == (0, said)
    assert "`jobledger jobs show again --steps`" in made.err
    (known,) = cli.jobs(*ask, "--id", "again", "--json").lines
    assert (known["created"], known["rerun_of"]) == (False, plan["rerun_of"])
    assert "job again is this rerun already" in cli.jobs(*ask, "--id", "again").out
    shown = cli.jobs("show", "again").out
    assert "rerun of" in shown
    assert '{"order":"78"}' in shown.replace('": "', '":"')
    for words, code, error in (
        (("--from", "aproved"), 2, "did you mean 'approved'"),
        (("--from", "approved", "--input", "[]"), 2, "--input must be a JSON object"),
        (("--from", "approved", "--at", "2020-01-01"), 2, "has no events in the ledger up to"),
        (("--from", "approved", "--id", "no id"), 2, "job id"),
        (("--from", "approved", "--id", "order-77"), 2, "choose another id"),
    ):
        answer = cli.jobs("rerun", "order-77", *words)
        assert (answer.code, error in answer.err) == (code, True), answer.err
    assert cli.jobs("rerun", "nobody", "--from", "a").code == 3
    for which in ([], ["--failed", "--from", "approved"]):
        assert "give --failed, or --from STEP" in cli.jobs("rerun", "order-77", *which).err
    going_on = cli.jobs("rerun", "order-77", "--failed")
    assert (going_on.code, "run order-77 is waiting and may still go on" in going_on.err) == (4, True)


async def _cancelled_behind_one_child(ledger: Ledger, job_id: str) -> None:
    """Let one of four children complete, then cancel their run."""
    await runs.for_children(ledger, job_id)
    run = await ledger.job(job_id)
    child = child_ref(run.ref, (await run.snapshot()).steps["pages"], 0)
    claimed = await ledger.execute(child, Claim(worker="w", lease_s=15))
    await ledger.execute(child, Complete(epoch=claimed.claim_epoch))
    await ledger.execute(run.ref, CancelJob())


def test_a_rerun_of_what_failed_is_planned_and_made(cli: Runs) -> None:
    cli.make(_cancelled_behind_one_child, "etl-1")
    ask = ("rerun", "etl-1", "--failed")
    (plan,) = cli.jobs(*ask, "--plan", "--json").lines
    assert plan["children_copied"] == [{"step": "pages", "children": 1}]
    assert ([each["step"] for each in plan["copied"]], plan["not_copied"]) == (["charge"], [])
    assert "1 of 4 copied" in cli.jobs(*ask, "--plan").out
    made = cli.jobs(*ask, "--id", "again").out
    assert made == (
        "job again begins as etl-1 did: it copies 2 steps and the ends of 1 child and executes what had not completed\n"
    )
    assert "with what had completed" in cli.jobs("show", "again").out

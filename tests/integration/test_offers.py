"""Whatever `jobs show --why`, a job's page or `dlq` offers is accepted and moves the job, in every state that can be reached."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import msgspec
import pytest
from tests.support import waiting_runs as runs
from tests.support.command_line import CommandLine
from tests.support.dashboard import Form, Forms
from tests.support.gateways import gateway_of
from tests.support.runs import step
from tests.support.terminal import on_a_terminal

from jobledger.admin.rows import Rows
from jobledger.audit.archive import Archiver, archive_deps
from jobledger.gateway.app import app
from jobledger.ledger import Ledger
from jobledger.ledger.model.commands import (
    CancelJob,
    Complete,
    CompleteStep,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Enqueue,
    Fail,
    Pause,
    RequestPause,
    Snooze,
)
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.events import DeadReason, Order
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.wait_words import AWAITED
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.server import EmbeddedServer

Make = Callable[[Ledger, str], Awaitable[Any]]
SOON: Final = datetime.now(UTC) + timedelta(days=1)
dead = functools.partial(DeadLetter, epoch=0, error=runs.BOOM)


def ended(*commands: Any) -> Make:
    """Return what makes a plain job whose attempt ends with some commands."""
    return lambda ledger, job_id: runs.ended(ledger, job_id, *commands)


def after(make: Make, *commands: Any) -> Make:
    """Return what makes a job and has some more happen to it."""

    async def made(ledger: Ledger, job_id: str) -> None:
        await make(ledger, job_id)
        for command in commands:
            await runs.do(ledger, job_id, command)

    return made


async def rerun(ledger: Ledger, job_id: str) -> None:
    await runs.dead_run(ledger, f"{job_id}-first")
    await ledger.rerun(runs.ref_of(f"{job_id}-first"), failed=True, id=job_id)


async def in_a_paused_queue(ledger: Ledger, job_id: str) -> None:
    ref = JobRef(queue="closed", job_id=job_id)
    await ledger.pause_queue(ref.queue)
    await ledger.execute(ref, Enqueue(ref=ref, task="send", order=Order(input=msgspec.Raw(b"{}"))))


#: By its name what makes a job of that state. From `step` on a worker serves the queue.
STATES: Final[Mapping[str, Make]] = {
    "scheduled": runs.scheduled,
    "deadline": runs.with_a_deadline,
    "held": runs.limited,
    "plain": runs.plain,
    "run": runs.enqueued,
    "going-back": runs.going_back,
    "queue-paused": in_a_paused_queue,
    "step": runs.in_a_step,
    "claimed": runs.claimed,
    "lost": runs.on_a_dead_worker,
    "to-pause": runs.asked_to_pause,
    "to-end": runs.asked_to_end,
    "version": runs.of_another_version,
    "retry-wait": ended(Fail(epoch=0, error=runs.BOOM, retry_at=SOON)),
    "snoozed": ended(Snooze(epoch=0, until=SOON)),
    "by-its-task": ended(Pause(epoch=0)),
    "by-a-person": after(runs.plain, RequestPause(reason="the bank is closed")),
    "snoozed-paused": ended(Snooze(epoch=0, until=SOON), RequestPause()),
    "signal": runs.for_signal,
    "signal-paused": after(runs.for_signal, RequestPause()),
    "two": runs.for_two_things,
    "sleep": runs.for_time,
    "retry": runs.for_retry,
    "undo": runs.between_tries_of_an_undo,
    "call": runs.for_a_call,
    "map": runs.for_children,
    "held-child": runs.for_a_held_child,
    "dead-child": runs.for_a_dead_child,
    "graph": runs.for_graph,
    "batch": runs.own_batch,
    "dead-batch": runs.own_dead_letter,
    "rerun": rerun,
    "completed": ended(Complete(epoch=0)),
    "run-completed": after(runs.running, Complete(epoch=0)),
    "cancelled": after(runs.plain, CancelJob()),
    "run-cancelled": after(runs.asked_to_end, ConfirmCancel(epoch=0)),
    "rejected": ended(dead(reason="rejected")),
    "exhausted": ended(dead(reason="exhausted")),
    "max-deliver": after(runs.plain, dead(reason="max_deliver")),
    "invalid": ended(dead(reason="invalid")),
    "discarded": ended(dead(reason="rejected"), Discard()),
    "child-failed": runs.dead_by_a_child,
    "diverged": runs.diverged,
    "dead-run": runs.dead_run,
    "run-discarded": after(runs.dead_run, Discard()),
    "doubtful": runs.doubtful_run,
    "undone": runs.undone,
    "branch": after(runs.running, step(CompleteStep, "branch/wire"), dead(reason="rejected")),
}
#: Commands that change the job that they name.
MOVES: Final = ("jobs cancel", "jobs resume", "jobs retry", "jobs signal", "dlq requeue")
#: Where forms go that are about what a job waits for.
CURED: Final = ("/jobs/", "/queues/", "/limits/")
#: What a form is filled with that a person has to say.
TYPED: Final = {
    "reason": "mended",
    "text": "seen",
    "name": "approved",
    "value": "true",
    "delay_s": "60",
    "slots": "9",
}


async def newest(ledger: Ledger, job_id: str) -> int:
    """Return the newest sequence of a job; 0: it does not exist."""
    try:
        return (await (await ledger.job(job_id)).snapshot()).last_sequence
    except JobNotFoundError:
        return 0


class Offers:
    """Makes jobs, and does with a copy of each what is offered for it."""

    def __init__(self, ledger: Ledger, http: httpx.AsyncClient, rows: Rows, archived_to: Path | None) -> None:
        self.ledger = ledger
        self._rows = rows
        self._archived_to = archived_to
        self.http = http
        self.wrong: list[str] = []
        self.done = 0
        self.reached: set[str] = set()  #: states of jobs, why they are dead, and what runs wait for
        self.cured: set[str] = set()  #: states of which a page offers what ends the wait for something else
        self.commands: list[tuple[str, str]] = []  #: each with the job that it is about
        self._made = 0

    async def copy(self, name: str, make: Make) -> str:
        """Make another job of that state."""
        self._made += 1
        job_id = f"{name}-n{self._made}"
        await make(self.ledger, job_id)
        if self._archived_to is not None:
            await self._rows.catch_up()
            await archive(self.ledger, self._archived_to)
        return job_id

    async def try_all(self, name: str, make: Make) -> None:
        """Do everything that the page and the answer over HTTP offer for a job; keep the commands for later."""
        job_id = await self.copy(name, make)
        job = await (await self.ledger.job(job_id)).snapshot()
        await self.try_forms(name, make, job)
        why = (await self.http.get(f"/v1/jobs/{job.queue}/{job_id}/why")).json()
        self.reached |= {job.state.value, job.dead_reason or "", *(each["awaits"] for each in why["waits"])}
        for hint in dict.fromkeys((why["hint"], *(each["hint"] for each in why["waits"]))):
            if hint and not hint.startswith("jobledger "):
                await self.try_request(hint, job_id, await self.copy(name, make))
        self.commands.append((name, await self.copy(name, make)))

    async def try_request(self, hint: str, job_id: str, copy: str) -> None:
        """Send the request that a hint names."""
        method, path, *body = hint.replace(job_id, copy).replace("VALUE", "true").split(" ", 2)
        found = re.search(r"/v1/jobs/[^/]+/([^/]+)", path)
        before = await newest(self.ledger, found[1]) if found else 0
        content = body[0] if body else "{}" if method != "GET" else None
        answer = await self.http.request(
            method, path, content=content, headers={"content-type": "application/json"}
        )
        moved = (
            method == "GET"
            or not found
            or path.endswith("/rerun")
            or await newest(self.ledger, found[1]) > before
        )
        self.note(hint, answer, answer.is_success and moved)

    async def try_forms(self, name: str, make: Make, job: Job) -> None:
        """Send every form of the page of a job, by each of its buttons, each about a copy."""
        here = f"/jobs/{job.queue}/{job.id}"
        page = await self.http.get(here)
        assert page.status_code == 200, (name, page.text[:500])
        for form in Forms(page.text).found:
            if not form.action.startswith(f"{here}/"):
                if form.method == "post" and form.action.startswith(CURED):
                    await self.try_cure(name, form, job.id, await self.copy(name, make))
                continue
            if form.method == "get":
                for key in form.choices["step"]:
                    await self.try_rerun(name, make, job, key)
                continue
            for action in form.actions or [form.action]:
                copy = await self.copy(name, make)
                sent = {key: value or TYPED.get(key, "") for key, value in form.fields.items()}
                before = await newest(self.ledger, copy)
                answer = await self.http.post(action.replace(f"/{job.id}/", f"/{copy}/"), data=sent)
                is_done = answer.status_code == 303 and await newest(self.ledger, copy) > before
                self.note(f"{name}: {action} {sent}", answer, is_done)

    async def try_cure(self, name: str, form: Form, job_id: str, copy: str) -> None:
        """Send a form of a job's page that is about what the job waits for."""
        action = form.action.replace(job_id, copy)
        named = re.fullmatch(r"/jobs/[^/]+/([^/]+)/[a-z]+", action)
        before = await newest(self.ledger, named[1]) if named else 0
        sent = {key: value or TYPED.get(key, "") for key, value in form.fields.items()}
        answer = await self.http.post(action, data=sent)
        moved = not named or await newest(self.ledger, named[1]) > before
        self.note(f"{name}: {action} {sent}", answer, answer.status_code == 303 and moved)
        self.cured.add(name)

    async def try_rerun(self, name: str, make: Make, job: Job, key: str) -> None:
        """Plan a rerun that the page offers, and begin it."""
        there = f"/jobs/{job.queue}/{await self.copy(name, make)}/rerun"
        plan = await self.http.get(there, params={"step": key})
        forms = [each for each in Forms(plan.text).found if each.action == there and each.method == "post"]
        self.note(f"{name}: plan a rerun from {key!r}", plan, bool(forms))
        for form in forms:
            sent = {each: value or TYPED.get(each, "") for each, value in form.fields.items()}
            begun = await self.http.post(there, data=sent)
            self.note(f"{name}: rerun from {key!r}", begun, begun.status_code == 303)

    def note(self, what: str, answer: httpx.Response, is_done: bool) -> None:
        """Count what was tried, and keep what was refused."""
        self.done += 1
        if not is_done:
            said = re.sub(r"<[^>]*>|\s+", " ", answer.text.partition("<main")[2] or answer.text)
            self.wrong.append(f"{what}: {answer.status_code} {said[:300]}")


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> CommandLine:
    monkeypatch.setenv("JOBLEDGER_PROJECTION", str(tmp_path / "rows.db"))
    on_a_terminal(monkeypatch)
    return CommandLine(nats_server.url, capsys)


def hints_of(cli: CommandLine, job_id: str, state: str) -> list[str]:
    """Return the commands that a person is told for a job."""
    (found,) = cli.run("jobs", "show", "--why", job_id, "--json", *cli.where).lines
    hints = [found["hint"], *(each["hint"] for each in found["waits"])]
    if found["status"] == "dead_lettered":
        shown = cli.run("dlq", "show", job_id, *cli.where)
        assert shown.code == 0, (state, shown)
        hints.extend(re.findall(r"`(jobledger [^`]+)`", shown.out))
    return [each for each in dict.fromkeys(hints) if each]


def refused(cli: CommandLine, what: str, hint: str) -> str:
    """Type a command that a person is told; return what is wrong with its answer, "" for nothing."""
    words = shlex.split(hint.replace("'...'", "true"))[1:]
    if words[0] in {"worker", "doctor"}:
        return ""  # it goes on working, or has something to complain of
    moves = " ".join(words[:2]) in MOVES
    before = cli.with_ledger(lambda ledger: newest(ledger, words[2])) if moves else 0
    answer = cli.run(*words, *cli.where, *(("--yes",) if words[:2] == ["dlq", "requeue"] else ()))
    if answer.code:
        return f"{what}: {answer}"
    is_moved = not moves or cli.with_ledger(lambda ledger: newest(ledger, words[2])) > before
    return "" if is_moved else f"{what}: nothing was changed"


async def archive(ledger: Ledger, folder: Path) -> None:
    """Archive all that can go."""
    deps = archive_deps(ledger, by="ann", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, folder, deps).run(datetime.now(UTC))


async def done_over_http(
    ledger: Ledger, folder: Path, states: Mapping[str, Make], archived_to: Path | None = None
) -> Offers:
    """Do what the page and the answer over HTTP offer for a job of each state, perhaps behind an archive run."""
    async with (
        gateway_of(ledger, folder) as gateway,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app(gateway)), base_url="http://127.0.0.1:8080"
        ) as http,
    ):
        offers = Offers(ledger, http, gateway.rows, archived_to)
        for name, make in states.items():
            await offers.try_all(name, make)
    return offers


def test_what_is_offered_is_accepted(cli: CommandLine, tmp_path: Path) -> None:
    """For each state: what the page, the answer over HTTP and the command line offer is done to a copy."""

    offers = cli.with_ledger(lambda ledger: done_over_http(ledger, tmp_path, STATES))
    wrong = offers.wrong
    for state, job_id in offers.commands:
        wrong.extend(
            said for hint in hints_of(cli, job_id, state) if (said := refused(cli, f"{state}: {hint}", hint))
        )
    assert wrong == [], "\n".join(wrong)
    assert offers.done > 150
    assert offers.cured == {"held", "queue-paused", "dead-child"}
    assert offers.reached == {*JobState, *get_args(DeadReason), *AWAITED} - {"operator", "step"} | {""}


def test_what_is_offered_is_accepted_where_an_archive_holds_the_beginning(
    cli: CommandLine, tmp_path: Path
) -> None:
    states = {name: STATES[name] for name in ("signal", "dead-run", "child-failed", "invalid")}
    folder = tmp_path / "archive"
    offers = cli.with_ledger(lambda ledger: done_over_http(ledger, tmp_path, states, folder))
    assert offers.wrong == [], "\n".join(offers.wrong)
    assert offers.done > len(states)

"""What can be asked of a ledger whose beginning was archived: never a wrong answer, and with --archive the whole one."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.jetstream import api

from jobledger.ledger import Ledger, task
from jobledger.ledger.model.commands import Claim, Complete

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

PAGE = (Path(__file__).parents[2] / "docs" / "retention.md").read_text(encoding="utf-8")
FIRST = "events before stream sequence 7 were archived"


@task(queue="billing", max_attempts=3)
async def charge(cents: int) -> None: ...


@task(queue="notes")
async def note(text: str) -> None: ...


class Cli(CommandLine):
    """Commands on an environment of the test's own, in the test's folder."""

    def __call__(self, *words: str) -> Answer:
        return self.run(*words, *self.where)

    def lines(self, *words: str) -> list[dict[str, Any]]:
        answer = self(*words, "--json")
        assert answer.code == 0, answer.err
        return answer.lines

    def archive(self) -> None:
        before = datetime.now(UTC).isoformat()
        assert self("audit", "archive", "--before", before, "--to", "archive").code == 0


async def tell(ledger: Ledger) -> None:
    """Append the six events that docs/retention.md asks about: a job that completed, one that was cancelled, one that waits."""
    first = (await ledger.enqueue(charge.options(id="charge-1", by="web-1"), 100)).ref
    claimed = await ledger.execute(first, Claim(worker="web-1-0a", lease_s=15))
    await ledger.execute(first, Complete(epoch=claimed.claim_epoch, result=msgspec.Raw(b'"paid"')))
    second = (await ledger.enqueue(charge.options(id="charge-2"), 200)).ref
    await ledger.cancel(second, reason="paid in cash", by="alice")
    await ledger.enqueue(charge.options(id="charge-3"), 300)


@pytest.fixture
def whole(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """Nothing was archived yet."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOBLEDGER_PROJECTION", raising=False)
    cli = Cli(nats_server.url, capsys)
    cli.with_ledger(tell)
    return cli


@pytest.fixture
def cli(whole: Cli) -> Cli:
    """Everything was archived; one projection has read it all before."""
    whole.archive()
    return whole


def normal(text: str) -> list[str]:
    """Return the words of a text without what differs from run to run."""
    for pattern, word in (
        (r"\b[A-Za-z0-9_-]+-\d+-[0-9a-f]{8}\b", "PROCESS"),
        (r"\b\d\d:\d\d:\d\d(\.\d{3})?Z?(?!\S)", "TIME"),
        (r"\b\d{4}-\d\d-\d\d\b", "DAY"),
        (r"\b[\d.]+ (ms|s|min|d)\b", "SPAN"),
        (r"─+", "LINE"),
    ):
        text = re.sub(pattern, word, text)
    return text.split()


def test_the_documented_answers_are_the_real_ones(cli: Cli) -> None:
    section = PAGE[PAGE.index("## Ask about what was archived") :]
    block = section[section.index("```console\n") + len("```console\n") :].partition("```")[0]
    steps = [part.partition("\n") for part in re.split(r"^\$ jobledger ", block, flags=re.MULTILINE)[1:]]
    assert len(steps) == 2
    for words, _, shown in steps:
        answer = cli(*shlex.split(words))
        assert (answer.code != 0) == shown.startswith("jobledger: "), words
        assert normal(answer.out + answer.err) == normal(shown), words


def test_who_tells_of_archived_acts_or_that_there_are_some(whole: Cli) -> None:
    known = whole.lines("audit", "who")
    assert [(act["act"], act["job"]) for act in known] == [("cancel", "charge-2")]
    assert whole("audit", "who").err == ""
    whole.archive()
    assert whole.lines("audit", "who", "--archive", "archive") == known
    (export,) = Path("archive").iterdir()
    assert whole.lines("audit", "who", "--archive", str(export)) == known
    for words in ([], ["--json"], ["--by", "alice"]):
        answer = whole("audit", "who", *words)
        assert (answer.code, "cancel" in answer.out) == (0, False)
        assert answer.err.startswith(f"{FIRST}, and `jobledger audit who --archive DIR`")
        assert len(answer.err.splitlines()) == 1
    now = datetime.now(UTC).isoformat()  # nothing that was archived is so new
    assert whole("audit", "who", "--since", now) == Answer(0, "no operator actions match\n", "")
    assert whole("audit", "who", "--archive", "nowhere").code == 3
    both = ("--archive", "archive", "--since")
    assert whole.lines("audit", "who", *both, known[0]["at"]) == known
    assert whole.lines("audit", "who", *both, now) == []

    async def cancel(ledger: Ledger) -> None:
        await ledger.cancel((await ledger.job("charge-3")).ref, by="bob")

    whole.with_ledger(cancel)
    (newer,) = whole.lines("audit", "who", *both, now)
    assert (newer["by"], newer["job"]) == ("bob", "charge-3")
    assert whole.lines("audit", "who", "--archive", "archive") == [newer, *known]


def test_an_archived_job_is_shown_as_it_was_before(whole: Cli) -> None:
    words = [("jobs", "show", job) for job in ("charge-1", "charge-2")]
    words += [("audit", "trail", job) for job in ("charge-1", "charge-2")]
    before = [whole.lines(*each) for each in words]
    whole.archive()
    archive = ("--archive", "archive")
    assert [whole.lines(*each, *archive) for each in words] == before
    for each in words:
        refused = whole(*each, "--queue", "billing")
        assert (refused.code, refused.out) == (3, "")
        assert f"job {each[2]} of queue billing (" in refused.err
        assert f"{FIRST}, and `jobledger {' '.join(each)} --archive DIR` reads those as well" in refused.err
    # A projection that was made since knows none of them.
    answer = whole("jobs", "show", "charge-1", "--projection", "fresh.db")
    assert (answer.code, "no job 'charge-1' is in the ledger: " + FIRST in answer.err) == (3, True)
    assert whole("jobs", "cancel", "charge-1").code == 3
    (job,) = whole.lines("jobs", "show", "charge-1", *archive, "--sequence", "2")
    assert (job["status"], job["last_sequence"], len(job["events"])) == ("running", 2, 2)
    assert (
        "it came at stream sequence 4" in whole("jobs", "show", "charge-2", *archive, "--sequence", "2").err
    )


def test_a_carried_job_is_whole_with_its_archive(cli: Cli) -> None:
    (part,) = cli.lines("jobs", "show", "charge-3")
    assert [event["type"] for event in part["events"]] == ["carried", "queued"]
    assert FIRST in cli("jobs", "show", "charge-3").err
    (whole,) = cli.lines("jobs", "show", "charge-3", "--archive", "archive")
    assert [event["type"] for event in whole["events"]] == ["queued", "carried", "queued"]
    chains = (part.pop("chain"), whole.pop("chain"))
    assert [(each["events"], each["archived_before"]) for each in chains] == [(2, True), (3, False)]
    assert {**part, "events": []} == {**whole, "events": []}
    answer = cli("audit", "trail", "charge-3", "--archive", "archive")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.index("queued in queue billing") < answer.out.index("whole, since events up to")


def test_a_large_value_that_is_gone_is_read_from_the_archive(whole: Cli) -> None:
    async def large(ledger: Ledger) -> None:
        ref = (await ledger.enqueue(note.options(id="note-1"), "x" * 70_000)).ref
        claimed = await ledger.execute(ref, Claim(worker="web-1-0a", lease_s=15))
        await ledger.execute(ref, Complete(epoch=claimed.claim_epoch))

    async def lose(ledger: Ledger) -> None:
        purged = await api(ledger.inbox, f"STREAM.PURGE.OBJ_{ledger.names.payloads_bucket}", {})
        assert purged["success"]

    whole.with_ledger(large)
    before = whole.lines("jobs", "show", "note-1")
    assert before[0]["input"] == {"text": "x" * 70_000}
    whole.archive()
    whole.with_ledger(lose)
    assert whole.lines("jobs", "show", "note-1", "--archive", "archive") == before


def test_ids_in_an_archive_may_be_prefixes_and_used_again(cli: Cli) -> None:
    async def again(ledger: Ledger) -> None:
        await ledger.enqueue(charge.options(id="charge-1"), 7)
        await ledger.enqueue(charge.options(id="refund-1"), 8)

    cli.with_ledger(again)
    archive = ("--archive", "archive")
    newer = cli("jobs", "show", "charge-1", *archive, "--json")
    assert (newer.lines[0]["status"], newer.lines[0]["input"]) == ("queued", {"cents": 7})
    older = re.search(r"`jobledger (jobs show .*) --archive DIR (.*)` shows that one", newer.err)
    assert older is not None
    (job,) = cli.lines(*older[1].split(), *archive, *older[2].split())
    assert (job["status"], job["input"]) == ("completed", {"cents": 100})
    assert cli.lines("jobs", "show", "refund", *archive)[0]["id"] == "refund-1"
    several = cli("audit", "trail", "charge", *archive)
    assert (several.code, "billing/charge-1, billing/charge-2, billing/charge-3" in several.err) == (4, True)
    assert cli("audit", "trail", "nobody", *archive).err.strip() == (
        "jobledger: no job 'nobody' is in the ledger, or in the archive that was named"
    )
    assert cli("jobs", "show", "a.b", *archive).code == 2
    assert cli("jobs", "show", "charge-1", "--queue", "email", *archive).code == 3
    # Compared with the moment when it was over, the job of that id is a new one.
    (difference,) = cli.lines("audit", "diff", "6", "head", *archive)
    assert {each["id"]: each["before"] for each in difference["jobs"]} == {
        "charge-1": None, "charge-3": "queued", "refund-1": None
    }  # fmt: skip


def test_parts_of_an_archive_are_told_from_the_whole(cli: Cli) -> None:
    async def more(ledger: Ledger) -> None:
        await ledger.enqueue(charge.options(id="charge-4"), 400)

    cli.with_ledger(more)
    cli.archive()
    older, newer = sorted(map(str, Path("archive").iterdir()))
    refused = cli("audit", "who", "--archive", older)
    assert refused.code == 2
    assert "ends at stream sequence 6, and the ledger begins at 12" in refused.err
    part = cli("audit", "who", "--archive", newer)
    assert (part.code, "the archive that was named begins at stream sequence 7" in part.err) == (0, True)
    both = cli("audit", "who", "--archive", older, "--archive", newer)
    assert (both.code, both.err, both.out) == (0, "", cli("audit", "who", "--archive", "archive").out)
    assert "name the exports before it as well" in cli("jobs", "show", "charge-1", "--archive", newer).err


@pytest.mark.unsound_ledger("it is purged by hand")
def test_what_is_lost_is_not_called_archived(whole: Cli) -> None:
    async def lose(ledger: Ledger) -> None:
        await ledger.log.purge(3)

    whole.with_ledger(lose)
    who = whole("audit", "who")
    assert (who.code, who.out.count("charge-2")) == (0, 1)
    assert (
        "events before stream sequence 4 are lost, since no `archived` event says where they are" in who.err
    )
    for words in (("audit", "diff", "3", "head"), ("jobs", "show", "charge-2", "--sequence", "3")):
        refused = whole(*words)
        assert (refused.code, refused.out) == (1, "")
        assert "stream sequence 1 is missing, the ledger went on with 4: events were lost" in refused.err


def test_a_difference_is_right_or_refused(whole: Cli) -> None:
    expected = whole.lines("audit", "diff", "1", "6")
    whole.archive()
    archive = ("--archive", "archive")
    assert whole.lines("audit", "diff", "1", "6", *archive) == expected
    (none,) = whole.lines("audit", "diff", "10", "head")
    assert none["jobs_changed"] == 0
    for moment in ("0", "6", "7", "2020-01-01T00:00:00Z"):
        refused = whole("audit", "diff", moment, "head")
        assert (refused.code, refused.out) == (4, ""), moment
        (command,) = re.findall(r"`jobledger ([^`]*)` reads that as well", refused.err)
        assert whole(*command.replace("DIR", "archive").split()).code == 0
    assert "can be told from stream sequence 10 on" in whole("audit", "diff", "9", "head").err
    (export,) = map(str, Path("archive").iterdir())
    assert whole("audit", "diff", export, export, *archive).code == 2
    assert whole.lines("audit", "diff", export, "head")[0]["jobs_changed"] == 1


def test_a_refused_moment_names_a_command_that_tells_it(cli: Cli) -> None:
    for number, moment in enumerate((("--sequence", "2"), ("--sequence", "9"), ("--at", "2020-01-01"))):
        refused = cli("jobs", "list", *moment)
        assert (refused.code, refused.out) == (4, "")
        assert cli("queues", "list", *moment).err == refused.err
        (command,) = re.findall(r"`jobledger ([^`]*)`", refused.err)
        done = cli(*command.replace("DIR", "archive").replace("FILE", f"{number}.db").split())
        assert done.code == 0, done.err
        assert ("running 1" in done.out) == (number == 0)
        refused = cli("jobs", "show", "charge-3", *moment)
        (command,) = re.findall(r"`jobledger ([^`]*)`", refused.err)
        done = cli(*command.replace("DIR", "archive").split())
        assert (refused.code, done.code) == (4, 0 if number == 1 else 3)  # else it was not there yet


def test_lists_say_where_their_rows_begin(cli: Cli) -> None:
    fresh = ("--projection", "fresh.db")
    for command in (("jobs", "list"), ("queues", "list"), ("jobs", "list", "--sequence", "10")):
        shown = cli(*command, *fresh)
        assert shown.code == 0
        assert "rows begin at stream sequence 7: earlier events are in the archive" in shown.err
        told = cli(*command, *fresh, "--json")
        assert [row["rows_begin_at"] for row in told.lines] == [7]
    assert [row["counts"]["completed"] for row in cli.lines("queues", "list")] == [1]
    for command in (("jobs", "list"), ("queues", "list")):  # the one that was there before
        assert cli(*command).err == ""
        assert not any("rows_begin_at" in row for row in cli.lines(*command))


def test_the_object_of_a_job_has_its_events_without_payloads(whole: Cli) -> None:
    (job,) = whole.lines("jobs", "show", "charge-1")
    stored = whole.lines("events", "tail", "--job", "charge-1")
    assert [event["stream_sequence"] for event in job["events"]] == [1, 2, 3]
    for event, tailed in zip(job["events"], stored, strict=True):
        assert event == {name: value for name, value in tailed.items() if name not in ("input", "result")}
    assert {"type", "stored_at", "at", "by", "worker"} <= set(job["events"][1])
    assert job["trace"].endswith("-02")  # its own: the caller had none
    whole.archive()
    (carried,) = whole.lines("jobs", "show", "charge-3")
    assert carried["input"] == {"cents": 300}
    assert "cents" not in json.dumps(carried["events"])
    assert carried["events"][0]["job_state"]["state"] == "queued"

"""`jobledger audit archive` against a real server: what docs/cli.md shows, what is refused, and the check afterwards."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.command_line import Answer, CommandLine

from jobledger.audit.archive import Archiver
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.commands import Claim, Complete
from jobledger.projections import Store

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


@task(queue="billing", max_attempts=3)
async def charge(cents: int) -> None: ...


@task(queue="notes", max_attempts=3)
async def note(text: str) -> None: ...


class Cli(CommandLine):
    """`jobledger audit` on an environment of the test's own, in the test's folder."""

    def __call__(self, *words: str) -> Answer:
        return self.there("audit", *words)

    def there(self, *words: str) -> Answer:
        return self.run(*words, *self.where)


async def tell(ledger: Ledger) -> None:
    """Append the nine events that docs/cli.md shows: two jobs that are over, and two that are not."""
    jobs = [(await ledger.enqueue(charge.options(id=f"charge-{n}"), n)).ref for n in range(1, 5)]
    for ref in jobs[:3]:
        claimed = await ledger.execute(ref, Claim(worker="web-1-0a", lease_s=15))
        if ref is not jobs[2]:
            await ledger.execute(ref, Complete(epoch=claimed.claim_epoch))


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = Cli(nats_server.url, capsys)
    made.with_ledger(tell)
    return made


def test_a_carried_job_is_explained_and_its_story_told(cli: Cli) -> None:
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    assert "whole, since events up to 9 go into an archive" in " ".join(cli("trail", "charge-4").out.split())
    why = cli.there("jobs", "show", "--why", "charge-4")
    assert why.code == 0
    assert why.out.splitlines()[-1].split()[2] == "carried"
    assert cli.there("jobs", "show", "charge-1").code == 3


def now() -> str:
    return datetime.now(UTC).isoformat()


def normal(text: str) -> str:
    """Return text without what differs from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"[\d.]+ (KiB|bytes|B)\b", "SIZE", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).strip()


def shown_in_docs(command: str) -> str:
    found = re.search(
        rf"^\$ jobledger {re.escape(command)}\n(.*?)(?=^\$|^```)", DOCS, flags=re.MULTILINE | re.DOTALL
    )
    assert found is not None, command
    return normal(found[1])


def objects(answer: Answer) -> dict[str, Any]:
    assert answer.code == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_the_documented_outputs_are_printed_and_the_ledger_is_proved_with_its_archive(cli: Cli) -> None:
    before = ("--before", now(), "--to", "archive")
    planned = cli("archive", *before, "--plan")
    documented = "audit archive --before 2025-01-31T08:00:00Z --to archive"
    assert normal(planned.out) == shown_in_docs(f"{documented} --plan")
    plan = objects(cli("archive", *before, "--plan", "--json"))
    assert (plan["events"], plan["jobs_archived"], plan["jobs_carried"], plan["work_items"]) == (9, 2, 2, 2)
    assert not Path("archive").exists()
    assert normal(cli("archive", *before).out) == shown_in_docs(documented)
    done = objects(cli("archive", *before, "--json"))
    assert (done["events"], done["exports"], done["first_sequence"]) == (0, [], 10)
    assert "the ledger begins at stream sequence 10" in " ".join(cli("archive", *before).out.split())
    alone = objects(cli("verify", "--json"))
    assert (alone["sound"], alone["from_sequence"], alone["jobs"]) == (True, 10, 2)
    whole = objects(cli("verify", "--archive", "archive", "--json"))
    assert (whole["sound"], whole["from_sequence"], whole["jobs"], whole["events"]) == (True, 1, 4, 15)
    assert objects(cli("verify", str(next(Path("archive").iterdir())), "--json"))["sound"]


def test_the_archive_may_not_be_elsewhere_and_what_is_wrong_is_one_sentence(cli: Cli) -> None:
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    cli.with_ledger(tell_more)
    refused = cli("archive", "--before", now(), "--to", "other")
    assert refused.code in (3, 4)
    assert "other" in refused.err
    assert len(refused.err.splitlines()) == 1
    later = cli("archive", "--before", "2200-01-01T00:00:00Z", "--to", "archive")
    assert (later.code, "is still to come" in later.err) == (2, True)
    assert cli("archive", "--before", "soon", "--to", "archive").code == 2
    export = next(Path("archive").iterdir())
    data = (export / "manifest.json").read_text(encoding="utf-8")
    (export / "manifest.json").write_text(data.replace('"count": 9', '"count": 8'), encoding="utf-8")
    damaged = cli("verify", "--archive", "archive")
    assert damaged.code in (1, 4)
    assert "manifest.json" in damaged.err


def test_projections_go_on_after_an_archive_and_are_proven_with_it(cli: Cli) -> None:
    for name in ("followed", "late"):
        assert cli.there("projection", "rebuild", "--projection", name).code == 0
    cli.with_ledger(tell_more)
    assert cli.there("jobs", "list", "--projection", "followed").code == 0
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    assert cli.there("jobs", "list", "--projection", "followed").code == 0
    late = cli.there("jobs", "list", "--projection", "late")
    assert (late.code, "jobledger projection rebuild" in late.err) == (4, True)
    verify = ("projection", "verify", "--projection", "followed")
    alone = cli.there(*verify)
    assert alone.code == 4
    assert "followed holds everything from stream sequence 1 on, and the ledger begins at 11" in alone.err
    assert "`jobledger projection verify --archive DIR`" in alone.err
    assert cli.there(*verify, "--archive", "archive").code == 0
    whole = objects(
        cli.there("projection", "rebuild", "--projection", "late", "--archive", "archive", "--json")
    )
    assert whole["begins_at"] == 1
    fresh = objects(cli.there("projection", "rebuild", "--projection", "fresh", "--json"))
    assert (fresh["begins_at"], fresh["counts_begin_at"]) == (11, 1)
    assert totals(Path("fresh")) == totals(Path("followed"))
    assert cli.there("projection", "verify", "--projection", "fresh").code == 0
    assert cli.there("projection", "verify", "--projection", "fresh", "--archive", "archive").code == 0
    assert cli.there("projection", "verify", "--projection", "late", "--archive", "archive").code == 0
    for name, archived, agrees in (
        ("fresh", (), "is what the events up to"),
        ("fresh", ("--archive", "archive"), "is what the events up to"),
        ("late", ("--archive", "archive"), "is what the events up to"),
        ("late", (), "was not compared: the projection late holds everything from stream sequence 1 on"),
    ):
        report = objects(cli("verify", "--with-projection", "--projection", name, *archived, "--json"))
        said = [each["sentence"] for each in report["compared"] if each["what"] == "projection"]
        assert (report["sound"], said[-1].startswith(f"{name} {agrees}")) == (True, True), said
    status = objects(cli.there("projection", "status", "--projection", "nowhere", "--json"))
    assert (status["begins_at"], status["lag_events"]) == (11, status["head"] - 10)


def totals(path: Path) -> list[Any]:
    with Store.open(path) as store:
        return [*store.totals(), *store.failures()]


async def tell_more(ledger: Ledger) -> None:
    await ledger.enqueue(charge.options(id="charge-9"), 9)


def test_a_subscriber_that_is_behind_is_named_in_the_plan_and_stops_the_run(cli: Cli) -> None:
    async def subscribe(ledger: Ledger) -> None:
        async with ledger.subscription("billing", from_sequence=1):
            pass

    cli.with_ledger(subscribe)
    before = ("--before", now(), "--to", "archive")
    assert "has not acknowledged stream sequence 1: the run would be refused" in " ".join(
        cli("archive", *before, "--plan").out.split()
    )
    refused = cli("archive", *before)
    assert (refused.code, "events_billing (from stream sequence 1 on)" in refused.err) == (4, True)
    assert cli("archive", *before, "--force").code == 0


def test_an_empty_ledger_has_nothing_to_archive(
    nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = Cli(nats_server.url, capsys)
    cli.make_ledger()
    answer = cli("archive", "--before", now(), "--to", str(tmp_path / "archive"))
    assert answer.code == 0
    assert re.fullmatch(
        r"nothing to archive that was stored before \S+Z: the ledger begins at stream sequence 1",
        " ".join(answer.out.split()),
    )


@pytest.mark.parametrize("step", ["_export", "_check", "_carry", "_record", "_purge"])
def test_ctrl_c_at_any_step_is_one_sentence_and_the_next_run_goes_on(
    cli: Cli, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_words: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(10)

    words = ("archive", "--before", now(), "--to", "archive")
    with monkeypatch.context() as patched:
        patched.setattr(Archiver, step, interrupted)
        stopped = cli(*words)
    assert (stopped.code, stopped.out) == (130, "")
    assert " ".join(stopped.err.split()).endswith(
        "interrupted: nothing is lost; run the command again to resume"
    )
    assert cli("verify", "--archive", "archive").code == (3 if step == "_export" else 0)
    done = objects(cli(*words, "--json"))
    assert (done["first_sequence"], done["jobs_archived"]) == (10, 2)
    assert cli("verify", "--archive", "archive").code == 0


def test_a_folder_that_cannot_be_written_is_one_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty name, a file, a place where no folder can be made, a disk that is full when the events are written."""
    (tmp_path / "file").touch()
    for place, code, sentence in (
        ("", 2, "--to is empty"),
        ("file", 2, "this is a file, and an archive is a folder"),
        ("file/archive", 1, "the archive cannot be written, "),
        ("a" * 300, 2, "File name too long"),
    ):
        refused = cli("archive", "--before", now(), "--to", place)
        assert (refused.code, len(refused.err.splitlines())) == (code, 1), refused
        assert sentence in refused.err
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    monkeypatch.setenv("JOBLEDGER_PROJECTION", str(tmp_path / "p.db"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        full = cli("archive", "--before", now(), "--to", "archive")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (full.code, "the archive cannot be written, archive: File too large" in full.err) == (1, True), (
        full
    )
    assert list(Path("archive").iterdir()) == []
    assert objects(cli("verify", "--json"))["from_sequence"] == 1


def test_another_host_is_told_where_the_archive_is(cli: Cli) -> None:
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    place = f"{socket.gethostname()}:{Path('archive').absolute()}"
    cli.with_ledger(tell_more)
    Path("archive").rename("moved")
    Path("archive").mkdir()
    for words in (("archive", "--before", now(), "--to"), ("verify", "--archive")):
        lacking = cli(*words, "archive")
        assert lacking.code == 4
        assert "archive lacks the export of stream sequence 1 to 9 whose manifest" in lacking.err
        assert f"the newest run wrote to {place}" in lacking.err
    assert cli("archive", "--before", now(), "--to", "moved").code == 0
    assert cli("verify", "--archive", "moved").code == 0


def test_large_values_go_with_the_archive_unless_they_are_left_out(cli: Cli) -> None:
    async def large(ledger: Ledger) -> None:
        await ledger.enqueue(note.options(id="large"), "x" * 100_000)

    cli.with_ledger(large)
    assert cli("archive", "--before", now(), "--to", "archive", "--without-payloads").code == 0
    cli.with_ledger(large_too)
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    first, second = sorted(Path("archive").iterdir())
    assert not (first / "payloads").exists()
    (value,) = (second / "payloads").iterdir()  # of the carried job and of the new one, which are equal
    assert "left out of the export" in " ".join(cli("verify", str(first)).out.split())
    assert cli("verify", "--archive", "archive").code == 0
    value.write_bytes(b"{}")
    damaged = cli("verify", "--archive", "archive")
    assert (damaged.code, f"{value}: it was altered" in " ".join(damaged.err.split())) == (4, True), damaged
    assert cli.there("jobs", "show", "large").code == 0


async def large_too(ledger: Ledger) -> None:
    await ledger.enqueue(note.options(id="large-too"), "x" * 100_000)

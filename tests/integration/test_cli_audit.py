"""`jobledger audit verify` against a real server: proofs, planted events, rewritten tails, reports."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import nats
import pytest
from tests.support.audit_command import WIDTH, AuditCommand, double
from tests.support.tables import each_row
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.cli.main import run
from jobledger.ledger import Ledger
from jobledger.projections import Projector

if TYPE_CHECKING:
    pass

# audit verify


def test_an_empty_ledger_is_sound_and_whatever_comes_later_continues_it(
    audit: AuditCommand, tmp_path: Path
) -> None:
    kept = tmp_path / "report.json"
    answer = audit("verify", "--report", str(kept))
    assert (answer.code, answer.err) == (0, f"the report is kept in {kept}\n")
    assert answer.out.startswith("the ledger is sound\n0 events, 0 jobs, 0 attempts")
    assert "head    none: no event was there to check" in answer.out
    audit.work(1)
    assert audit("verify", "--against", str(kept)).code == 0


def test_what_workers_made_is_proven_with_head_and_hash(
    audit: AuditCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit.work(1, 2, 3)
    (body,) = audit("verify", "--json").lines
    assert (body["sound"], body["states"], body["violations"]) == (True, {"completed": 3}, [])

    async def newest(ledger: Ledger) -> tuple[int, str]:
        last = await ledger.log.get((await ledger.log.head()).last_sequence)
        assert last is not None
        return last.stream_sequence, last.hash

    assert (body["head_sequence"], body["head_hash"]) == audit.with_ledger(newest)
    answer = audit("verify")
    assert answer.code == 0
    assert (
        f"head    {body['head_sequence']}\nhash    {body['head_hash']}\ndigest  {body['digest']}"
        in answer.out
    )
    assert answer.out.count(body["digest"]) == 1, "what is told in full is not told in part as well"
    (part,) = audit("verify", "--from", "3", "--to", "5", "--json").lines
    assert (part["sound"], part["from_sequence"], part["head_sequence"]) == (True, 3, 5)
    on_a_terminal(monkeypatch, WIDTH)
    lines = unstyled(audit("verify").out)
    assert all(line == line.rstrip() and len(line) <= WIDTH for line in lines), lines


@pytest.mark.unsound_ledger("a second outcome is planted")
def test_a_planted_event_is_named_and_the_exit_code_is_4(audit: AuditCommand, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    job, _ = audit.work(1, 2)
    assert audit("verify", "--report", str(kept)).code == 0
    good = kept.read_bytes()
    sequence = audit.forge(job)
    answer = audit("verify", "--against", str(kept), "--report", str(kept))
    assert answer.code == 4
    assert answer.out.startswith("the ledger is NOT sound: 1 violation (outcome 1)")
    said = (
        f"jobledger: the ledger is not sound: rule `outcome` is broken at stream sequence {sequence} of work/{job}: "
        "`completed` is a second outcome of attempt 1, which was completed before"
    )
    assert said in answer.err.splitlines()
    assert kept.read_bytes() == good, "what is wrong does not become what is expected"
    body = audit("verify", "--json")
    assert (body.code, body.lines[0]["broken"]) == (4, {"outcome": 1})
    error = json.loads(body.err)["error"]
    assert (error["code"], error["type"]) == (4, "LedgerNotSoundError")


@pytest.mark.unsound_ledger("a second outcome is planted")
def test_an_unsound_ledger_is_reported_to_a_new_file_too(audit: AuditCommand, tmp_path: Path) -> None:
    (job,) = audit.work(1)
    audit.forge(job)
    kept = tmp_path / "report.json"
    assert audit("verify", "--report", str(kept)).code == 4
    assert json.loads(kept.read_text(encoding="utf-8"))["sound"] is False


def test_a_tail_that_is_cut_or_written_anew_is_found_by_an_earlier_report(
    audit: AuditCommand, tmp_path: Path
) -> None:
    kept = tmp_path / "report.json"
    audit.work(1, 2)
    (body,) = audit("verify", "--json", "--report", str(kept)).lines
    head = body["head_sequence"]

    async def cut(ledger: Ledger) -> None:
        """Make the stream anew with all but the last two events: sound in itself."""
        messages = [each async for batch in ledger.log.read_messages() for each in batch]
        raw = await nats.connect(audit.url)
        stream = ledger.names.ledger_stream
        config = (await raw.jetstream().stream_info(stream)).config
        await raw.jetstream().delete_stream(stream)
        # Without what the client adds by itself the server keeps the settings as they were.
        config.metadata = {
            name: value for name, value in (config.metadata or {}).items() if not name.startswith("_nats")
        }
        await raw.jetstream().add_stream(config)
        for message in messages[:-2]:
            await raw.jetstream().publish(message.subject, message.data)
        await raw.close()

    audit.with_ledger(cut)
    assert audit("verify").code == 0
    answer = audit("verify", "--against", str(kept))
    assert answer.code == 4
    assert f"the ledger ends before {head}, where the earlier report did" in answer.err
    audit.work(5)  # it grows beyond the old head, with other events
    answer = audit("verify", "--against", str(kept))
    assert answer.code == 4
    assert (
        f"rule `history` is broken at stream sequence {head}: stream sequence 1 to {head} is not"
        in answer.err
    )


def test_a_projection_is_compared_in_the_same_report(audit: AuditCommand, tmp_path: Path) -> None:
    audit.work(1, 2)
    path = tmp_path / "jobs.db"
    compare = ("verify", "--with-projection", "--projection", str(path))
    answer = audit(*compare)
    assert (answer.code, "there is no projection" in answer.err) == (3, True), answer.err

    async def follow(ledger: Ledger) -> int:
        with Projector(ledger.log, path) as projector:
            return (await projector.catch_up()).stream_sequence

    position = audit.with_ledger(follow)
    audit.work(5)  # what it has not read yet does not count against it
    answer = audit(*compare)
    assert answer.code == 0, answer.err
    text = " ".join(answer.out.split())
    assert f"jobs.db is what the events up to stream sequence {position} add up to" in text
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET retry_count = 77 WHERE rowid = 1")
        connection.commit()
    answer = audit(*compare, "--json")
    assert answer.code == 4
    (body,) = answer.lines
    place, rows = [each for each in body["compared"] if each["what"] == "projection"]
    assert (body["broken"], place["agrees"], rows["agrees"]) == ({"projection": 1}, True, False)
    assert "retry_count" in body["violations"][0]["sentence"]
    assert "77 in" in rows["sentence"]
    assert "in the ledger" in rows["sentence"]
    assert "rule `projection` is broken" in json.loads(answer.err)["error"]["message"]
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
    answer = audit(*compare)
    assert (answer.code, "[projection]" in answer.out) == (4, True)


def test_a_projection_of_a_ledger_that_went_further_differs(audit: AuditCommand, tmp_path: Path) -> None:
    audit.work(1)
    path = tmp_path / "jobs.db"

    async def follow(ledger: Ledger) -> None:
        with Projector(ledger.log, path) as projector:
            _ = await projector.catch_up()

    audit.with_ledger(follow)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE position SET stream_sequence = 9000")
        connection.commit()
    answer = audit("verify", "--with-projection", "--projection", str(path))
    assert answer.code == 4
    assert "jobs.db has read up to 9000, so it was rewound" in answer.err
    assert "stream_sequence of 1 is 9000 in" in answer.out


def test_how_late_a_timer_may_be_can_be_chosen(audit: AuditCommand) -> None:
    async def delay(ledger: Ledger) -> None:
        handle = await ledger.enqueue(double.options(id="forgotten", delay_s=0.5), 1)
        assert (await handle.snapshot()).state == "scheduled"  # what is due when it is appended is queued
        await anyio.sleep(0.6)

    audit.with_ledger(delay)
    assert audit("verify").code == 0
    answer = audit("verify", "--timer-grace", "0")
    assert answer.code == 4
    assert "rule `timer` is broken at stream sequence 1 of work/forgotten: it was due at" in answer.err


def test_counts_by_type_and_cause_are_in_the_report(audit: AuditCommand) -> None:
    audit.work(1, 3)  # the second is retried once
    (body,) = audit("verify", "--json", "--memory", "1").lines
    assert body["types"] == {"queued": 3, "started": 3, "completed": 2, "failed": 1}
    assert body["causes"] == {"new": 2, "retried": 1}
    assert (body["attempts"], body["attempts_lost"], body["seals"], body["archived_through"]) == (3, 0, 0, 0)


@each_row(
    ("words", "code", "sentence"),
    [
        (("--with-projection", "--from", "5"), 2, "a projection can only be compared with the whole ledger"),
        (("--timer-grace", "-1"), 2, "'--timer-grace'"),
        (("--memory", "0"), 2, "'--memory'"),
        (("--archive", "nowhere"), 3, "nowhere"),
        (("--from", "5", "--to", "3"), 2, "--to 3 comes before --from 5"),
        (("--against", "none.json"), 3, "there is no earlier report none.json: make one with --report"),
        (("--against", "bad.json"), 2, "bad.json is not a report of `jobledger audit verify`"),
        (("--against", "report.json", "--from", "2"), 2, "--from 2: the earlier report begins at 1"),
        (("--against", "report.json", "--to", "1"), 2, "--to 1: the earlier report goes up to "),
        (("--report", "no/such/report.json"), 2, "--report no/such/report.json: there is no folder "),
        (("--from", "0"), 2, "'--from': Input should be greater than or equal to 1"),
        (("--from", "9000"), 2, "--from 9000 lies beyond the ledger's end, which is 3"),
        (("--to", "9000"), 2, "--to 9000 lies beyond the ledger's end, which is 3"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_a_sentence(
    audit: AuditCommand, reports: None, words: tuple[str, ...], code: int, sentence: str
) -> None:
    answer = audit("verify", *words)
    assert (answer.code, sentence in answer.err) == (code, True), answer.err


def test_no_server_is_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify", "--url", "nats://127.0.0.1:1"]) == 5
    assert "jobledger: " in capsys.readouterr().err


@pytest.fixture
def reports(audit: AuditCommand, here: Path) -> None:
    """A report of a ledger with one job, and one that is none."""
    audit.work(1)
    assert audit("verify", "--report", "report.json").code == 0
    (here / "bad.json").write_text("{}", encoding="utf-8")

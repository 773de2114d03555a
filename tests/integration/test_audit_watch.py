"""Seals, checks and archive runs are watched: by metrics, by `doctor`, and in the ledger itself."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.command_line import Answer, CommandLine

from jobledger.admin import health
from jobledger.audit.watch import AuditState, audited
from jobledger.ledger import Ledger, task
from jobledger.projections.metrics.facts import server_facts
from jobledger.projections.metrics.metrics import audit_metrics

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


@task(queue="work", max_attempts=1)
async def double(number: int) -> int:
    return 2 * number


class Cli(CommandLine):
    """Commands on a ledger of the test's own."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.folder = folder
        self.add(3)
        assert self.run("audit", "keygen", self.key).code == 0

    @property
    def key(self) -> str:
        return str(self.folder / "seal.pem")

    def __call__(self, *words: str) -> Answer:
        return self.run(*words, *self.where)

    def add(self, count: int) -> None:
        async def add(ledger: Ledger) -> None:
            for number in range(count):
                await ledger.enqueue(double, number)

        self.with_ledger(add)

    def seal(self) -> None:
        assert self("audit", "seal", "--key", self.key).code == 0

    def watched(self) -> AuditState:
        async def look(ledger: Ledger) -> AuditState:
            return await audited(ledger.log)

        return self.with_ledger(look)

    def metrics(self) -> dict[str, float]:
        """Return the exporter's samples about the audit."""

        async def scrape(ledger: Ledger) -> dict[str, float]:
            families = audit_metrics(await server_facts(ledger, 0), ledger.clock.now())
            return {
                sample.name.removeprefix("jobledger_"): sample.value
                for family in families
                for sample in family.samples
            }

        return self.with_ledger(scrape)

    def doctor(self, check: str) -> dict[str, Any] | None:
        answer = self("doctor", "--json", "--projection", str(self.folder / "p.db"))
        return next((each for each in answer.lines[0]["checks"] if each["check"] == check), None)


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(nats_server.url, tmp_path, capsys)


def test_a_ledger_that_was_never_audited_has_no_samples(cli: Cli) -> None:
    assert cli.watched() == AuditState()
    assert cli.metrics() == {}
    seals = cli.doctor("seals")
    assert seals is not None
    assert (seals["status"], "`jobledger audit seal` makes them" in seals["found"]) == ("ok", True)
    assert cli.doctor("verify") is None


def test_events_that_no_seal_covers_are_counted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.seal()
    assert (cli.watched().sealed_through, cli.watched().unsealed) == (3, 0)
    cli.add(2)
    found = cli.metrics()
    assert (found["sealed_sequence"], found["unsealed_events"]) == (3, 2)
    assert 0 <= found["seal_age_seconds"] < 60
    seals = cli.doctor("seals")
    assert seals is not None
    assert (seals["status"], "goes up to 3, " in seals["found"], "2 events after it" in seals["found"]) == (
        "ok",
        True,
        True,
    )
    monkeypatch.setattr(health, "SEAL_WARN_S", 0.0)
    seals = cli.doctor("seals")
    assert seals is not None
    assert (seals["status"], "--follow" in seals["advice"]) == ("warn", True)
    cli.seal()
    seals = cli.doctor("seals")
    assert seals is not None
    assert seals["status"] == "ok", "a seal of an idle ledger may be old"
    assert cli.metrics()["unsealed_events"] == 0


def test_a_check_is_recorded_when_asked_and_sealed_like_everything_else(cli: Cli) -> None:
    assert cli("audit", "verify").code == 0
    assert cli.watched().verified is None, "a check by itself changes nothing"
    answer = cli("audit", "verify", "--record", "--json")
    verified = cli.watched().verified
    assert verified is not None
    assert (verified.sound, verified.to_sequence, verified.head_hash) == (
        True,
        3,
        answer.lines[0]["head_hash"],
    )
    assert verified.digest == answer.lines[0]["digest"]
    found = cli.metrics()
    assert found["verify_sound"] == 1
    assert 0 <= found["verify_age_seconds"] < 60
    check = cli.doctor("verify")
    assert check is not None
    assert (check["status"], check["found"].endswith("up to 3: sound")) == ("ok", True)
    assert "verified: 1 to 3: sound" in cli("audit", "trail", "reactor/verify").out
    cli.seal()
    cli("audit", "verify", "--record")
    assert cli.metrics()["unsealed_events"] == 1
    cli.seal()
    assert cli.metrics()["unsealed_events"] == 0
    assert cli("audit", "verify", "--seal-key", f"{cli.key}.pub").code == 0


@pytest.mark.unsound_ledger("events are forged")
def test_a_check_that_found_something_is_recorded_as_that(cli: Cli) -> None:
    async def forge(ledger: Ledger) -> None:
        stored = (await (await ledger.job(await _first_job(ledger))).history())[0]
        await ledger.connection.request(stored.subject, stored.data)

    cli.with_ledger(forge)
    assert cli("audit", "verify", "--record").code == 4
    assert cli.metrics()["verify_sound"] == 0
    check = cli.doctor("verify")
    assert check is not None
    assert (check["status"], "NOT sound, 2 violations" in check["found"]) == ("fail", True), check


async def _first_job(ledger: Ledger) -> str:
    async for batch in ledger.log.read():
        return batch[0].event.job
    raise AssertionError("there are jobs")


def test_an_archive_run_is_watched_and_takes_older_checks_away(cli: Cli) -> None:
    assert cli("audit", "verify", "--record").code == 0
    now = datetime.now(UTC).isoformat()
    folder = str(cli.folder / "archive")
    assert cli("audit", "archive", "--before", now, "--to", folder).code == 0
    assert cli.watched().archived_through == 4
    assert 0 <= cli.metrics()["archive_age_seconds"] < 60
    check = cli.doctor("archive")
    assert check is not None
    assert (check["status"], check["found"].endswith("moved events up to 4")) == ("ok", True)
    assert cli.watched().verified is None, "what was recorded lies in the archive"
    for words in ((), ("--archive", folder)):
        answer = cli("audit", "verify", "--record", *words)
        assert answer.code == 0, answer.err
    assert cli("audit", "verify", "--archive", folder).code == 0

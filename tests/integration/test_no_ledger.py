"""Where there is no ledger: who only reads, proves or acts on what is there makes none, and says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from nats.aio.client import Client
from tests.support.command_line import Answer, CommandLine
from tests.support.gateway import send
from tests.support.program import PROGRAM
from tests.support.tables import each_row
from tests.support.working import Connect

from jobledger.audit.export import write_export
from jobledger.cli.command import CREATES
from jobledger.ledger import Ledger, LedgerConfig, connect
from jobledger.ledger.model.errors import LedgerNotFoundError
from jobledger.ledger.model.subjects import environment_of
from jobledger.ledger.nats.api import purge_stream
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.sync import connect as connect_sync
from jobledger.ledger.timer_upkeep import timers_status

PAST = "2020-01-01"

#: A command line for each command that needs a ledger and does not make one.
WORDS = {
    "jobs list": "",
    "top": "--once",
    "jobs show": "j",
    "jobs cancel": "j",
    "jobs retry": "j",
    "jobs discard": "j",
    "jobs run": "j --app FOLDER/app.py",
    "jobs debug": "j --app FOLDER/app.py",
    "jobs logs": "j",
    "jobs signal": "j go",
    "jobs pause": "j",
    "jobs resume": "j",
    "jobs note": "j seen",
    "jobs rerun": "j --from charge",
    "jobs reschedule": "j --in 1m",
    "unique show": "send",
    "tables list": "",
    "tables show": "r rows",
    "tables query": "r SELECT",
    "tables export": "r rows FOLDER/rows.parquet",
    "tables remove": "r",
    "limits list": "",
    "limits show": "tenant",
    "limits set": "tenant --slots 5",
    "limits remove": "tenant",
    "limits verify": "",
    "limits simulate": f"--at {PAST}/{PAST}T01:00 --set tenant=5",
    "queues list": "",
    "queues pause": "mail",
    "queues resume": "mail",
    "queues drain": "mail",
    "queues purge": "mail --yes",
    "schedules list": "",
    "schedules show": "s",
    "schedules next": "s",
    "schedules pause": "s",
    "schedules resume": "s",
    "schedules remove": "s",
    "schedules trigger": "s",
    "schedules backfill": f"s --from {PAST} --to {PAST}T01:00",
    "schedules reset": "s",
    "schedules prune": "",
    "dlq list": "",
    "dlq show": "j",
    "dlq requeue": "--all",
    "dlq discard": "--all --reason old",
    "events tail": "",
    "events subscriptions list": "",
    "events subscriptions remove": "billing",
    "audit verify": "",
    "audit trail": "j",
    "audit who": "",
    "audit acknowledge": "1 --reason accepted",
    "audit seal": "--key FOLDER/seal.key",
    "audit seals": "",
    "audit export": "FOLDER/export",
    "audit diff": "1 head",
    "audit archive": f"--before {PAST} --to FOLDER/archive",
    "audit redact": "--archive FOLDER/archive --where tenant=acme --reason old",
    "projection run": "--once",
    "projection status": "",
    "projection rebuild": "",
    "projection verify": "",
    "timers status": "",
    "timers rebuild": "",
    "stats": "",
    "sql": "SELECT",
    "locks list": "",
    "locks show": "report main",
    "workers list": "",
    "ledger resize": "8MiB",
    "upgrade show": "",
    "upgrade finish": "",
    "erase": "person:17 --reason asked",
    "owners list": "",
    "owners show": "person:17",
    "owners hold": "person:17",
    "owners unhold": "person:17",
    "owners export": "person:17 FOLDER/person",
    "owners backup": "FOLDER/keys",
    "owners restore": "FOLDER/app.py",
    "owners master rotate": "",
    "owners master forget": "m1",
    "backup": "FOLDER/backups",
    "retention show": "",
    "retention run": "--once",
    "cluster show": "",
    "cluster replicas": "3",
    "keys list": "",
    "keys show": "ci",
    "keys rotate": "ci",
    "keys revoke": "ci",
    "keys link": "dana --role viewer",
    "graphs list": "",
    "graphs show": "onboarding",
    "graphs remove": "onboarding",
    "graphs run": "onboarding",
    "routes list": "",
    "routes show": "shop",
    "routes remove": "shop",
    "routes deliveries": "shop",
    "routes test": "shop --body FOLDER/app.py",
    "routes retry": "shop d",
    "routes emit": "shop --data {}",
    "webhooks list": "",
    "webhooks show": "w",
    "webhooks remove": "w",
    "webhooks pause": "w",
    "webhooks resume": "w",
    "webhooks test": "w",
    "webhooks redeliver": f"w --since {PAST}",
    "webhooks rotate": "w --secret env:S",
    "watches list": "",
    "watches show": "deep",
    "watches remove": "deep",
    "workflows list": "",
    "workflows versions": "",
    "workflows check": "--open --app FOLDER/app.py",
    "replay": f"--to {PAST} --into FOLDER/then.db",
    "metrics": "--port 0",
    "doctor": "",
    "health": "",
}
#: Those that make a ledger, by words or by themselves.
CREATING = {
    "up",
    "init",
    "worker",
    "reactors",
    "gateway",
    "enqueue",
    "outbox relay",
    "keys create",
    "graphs put",
    "routes set",
    "watches set",
    "retention set",
    "webhooks set",
    "schedules add",
    "audit restore",
    "demo",
}
#: Those that need no ledger.
OFFLINE = {
    "server",
    "restore",
    "events schema",
    "events asyncapi",
    "outbox status",
    "outbox list",
    "outbox retry",
    "outbox discard",
    "outbox create",
    "outbox schema",
    "audit keygen",
    "webhooks keygen",
    "permissions",
}


class Cli(CommandLine):
    """Commands on a place without a ledger."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.folder = folder

    def __call__(self, words: str, *more: str) -> Answer:
        return self.run(*words.replace("FOLDER", str(self.folder)).split(), *self.where, *more)

    def enqueue(self, job_id: str = "j") -> None:
        answer = self(f"enqueue idle --app FOLDER/app.py --id {job_id}")
        assert answer.code == 0, answer.err

    def streams(self) -> list[str]:
        """The streams of this environment."""

        async def ask() -> list[str]:
            client = await nats.connect(self.url)
            infos = await client.jetstream().streams_info()
            await client.close()
            return [info.config.name or "" for info in infos]

        return [name for name in anyio.run(ask) if self.environment.upper() in name]

    def delete_ledger(self) -> None:
        anyio.run(delete_ledger, self.url, self.environment)


async def delete_ledger(url: str, environment: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().delete_stream(f"{environment.upper()}_LEDGER")
    await client.close()


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("JOBLEDGER_LEDGER_BYTES_MAX", str(1 << 20))
    (tmp_path / "app.py").write_text(
        "from jobledger.ledger import task\n\n@task\nasync def idle() -> None: ...\n", encoding="utf-8"
    )
    made = Cli(nats_server.url, tmp_path, capsys)
    assert made.run("audit", "keygen", str(tmp_path / "seal.key")).code == 0
    return made


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    members: dict[str, Any] = getattr(command, "commands", {})
    if not members:
        yield " ".join(path), command
    for name, member in members.items():
        yield from _commands(member, (*path, name))


def test_every_command_is_known_to_make_a_ledger_or_none() -> None:
    found = dict(_commands(PROGRAM))
    assert set(found) == set(WORDS) | CREATING | OFFLINE
    makes = {name for name, each in found.items() if CREATES in {option.name for option in each.params}}
    assert makes == CREATING - {"demo"}, "whoever can say how large a ledger is makes one, and nobody else"


@each_row("name, words", WORDS.items())
def test_who_does_not_create_says_that_there_is_none(name: str, words: str, cli: Cli) -> None:
    answer = cli(f"{name} {words}")
    said = f"there is no ledger of environment '{cli.environment}' at {cli.url}: "
    assert answer.code == 3, answer
    assert said in " ".join((answer.err + answer.out).split())
    assert name == "doctor" or (answer.out, answer.err.count("\n")) == ("", 1)
    assert cli.streams() == []


def test_a_mistyped_environment_is_told_which_there_are(cli: Cli) -> None:
    cli.make_ledger()
    mistyped = cli.run("jobs", "list", "--url", cli.url, "--environment", cli.environment[:-1])
    assert mistyped.code == 3
    assert f"'{cli.environment}'" in mistyped.err
    assert "choose one of these" in mistyped.err


@each_row(
    "stream, environment",
    [
        ("LEDGER", ""),
        ("STAGING_LEDGER", "staging"),
        ("A_B_LEDGER", "a_b"),
        ("_LEDGER", None),
        ("TIMERS", None),
        ("STAGING_TIMERS", None),
        ("XLEDGER", None),
    ],
)
def test_an_environment_is_known_by_its_stream(stream: str, environment: str | None) -> None:
    assert environment_of(stream) == environment


def test_a_bad_export_is_refused_before_there_is_a_ledger(cli: Cli) -> None:
    (cli.folder / "bad").mkdir()
    (cli.folder / "bad" / "manifest.json").write_text("{}", encoding="utf-8")
    assert cli("audit restore FOLDER/bad").code != 0
    assert cli.streams() == []


def test_an_export_of_another_environment_is_refused_before_there_is_a_ledger(cli: Cli) -> None:
    async def export(ledger: Ledger) -> None:
        await write_export(ledger.log, cli.folder / "whole")

    cli.enqueue()
    cli.with_ledger(export)
    other = cli.run("audit", "restore", str(cli.folder / "whole"), "--url", cli.url, "--environment", "other")
    assert (other.code, "is of environment" in other.err) == (4, True)
    none = cli.run("jobs", "list", "--url", cli.url, "--environment", "other")
    assert none.code == 3
    cli.delete_ledger()
    assert cli("audit restore FOLDER/whole", "--ledger-bytes-max", str(1 << 20)).code == 0
    assert cli("audit verify").code == 0


def test_a_projection_says_that_the_ledger_it_knows_is_gone(cli: Cli) -> None:
    for number in range(3):
        cli.enqueue(f"j{number}")
    assert cli("jobs list").code == 0
    assert "read 3 events" not in cli("doctor").out
    cli.delete_ledger()
    for words in ("audit verify", "jobs list", "doctor"):
        answer = cli(words)
        said = " ".join((answer.out + answer.err).split())
        assert answer.code == 3
        assert "has read 3 events of a ledger" in said
        assert "that ledger is gone" in said
    assert not [name for name in cli.streams() if name.endswith("_LEDGER")]
    # Another one at the same place: it is itself sound, and who looks is told of the older.
    cli.enqueue()
    for words in ("audit verify", "doctor", "jobs list"):
        answer = cli(words)
        assert answer.code == (words == "doctor")  # a job waits, and no worker serves its queue
        assert "that ledger is gone" in " ".join((answer.out + answer.err).split())
    assert "gone" not in cli("jobs list").err, "once is enough for a list"


def test_a_named_projection_says_that_the_ledger_it_knows_is_gone(cli: Cli) -> None:
    named = ("--projection", str(cli.folder / "mine.db"))
    cli.enqueue()
    assert cli("jobs list", *named).code == 0
    cli.delete_ledger()
    assert "mine.db has read 1 events" in cli("jobs list", *named).err
    cli.enqueue()
    other = cli("jobs list", *named)
    assert other.code == 4
    assert "after the projection last read: the older one is gone" in other.err


def test_a_report_says_that_the_ledger_it_knows_is_gone(cli: Cli) -> None:
    cli.enqueue()
    assert cli("audit verify --report FOLDER/report.json").code == 0
    cli.delete_ledger()
    answer = cli("audit verify --against FOLDER/report.json")
    assert answer.code == 3
    assert "report.json proved a ledger there, up to stream sequence 1, and that ledger is gone" in answer.err


async def test_a_program_that_creates_none_gets_a_typed_error(
    nats_server: EmbeddedServer, environment: str, connected: Connect
) -> None:
    with pytest.raises(LedgerNotFoundError) as caught:
        async with connect(nats_server.url, environment=environment, create=False):
            pytest.fail("there is none")
    assert (caught.value.environment, caught.value.url) == (environment, nats_server.url)
    async with connected(), connected(create=False) as ledger:
        assert (await ledger.log.head()).last_sequence == 0
    assert LedgerConfig().create


def test_a_blocking_program_gets_it_too(nats_server: EmbeddedServer, environment: str) -> None:
    with (
        pytest.raises(LedgerNotFoundError),
        connect_sync(nats_server.url, environment=environment, create=False),
    ):
        pytest.fail("there is none")


async def test_whoever_reads_makes_no_timers_stream(ledger: Ledger, connected: Connect, raw: Client) -> None:
    for stream in ("TIMERS", "ADVISORIES", "DLQ"):
        await raw.jetstream().delete_stream(f"{ledger.names.environment.upper()}_{stream}")
    async with connected(create=False) as reader:
        status = await timers_status(reader)
        assert (status.timers_set, status.fired, status.unset_events) == (0, 0, None)
    streams = {info.config.name for info in await raw.jetstream().streams_info()}
    assert ledger.names.timers_stream not in streams


async def test_a_ledger_that_is_deleted_later_is_named(ledger: Ledger) -> None:
    await delete_ledger(ledger.config.url, ledger.names.environment)
    with pytest.raises(LedgerNotFoundError, match="somebody deleted it after this program connected"):
        await ledger.log.head()
    with pytest.raises(Exception, match="stream"):
        await purge_stream(ledger.inbox, ledger.names.ledger_stream, before_sequence=1)


async def test_a_ledger_that_is_deleted_later_is_told_to_who_enqueues(ledger: Ledger) -> None:
    await ledger.enqueue(send)
    await delete_ledger(ledger.config.url, ledger.names.environment)
    began = time.monotonic()
    with pytest.raises(LedgerNotFoundError, match="somebody deleted it after this program connected"):
        await ledger.enqueue(send)
    with pytest.raises(LedgerNotFoundError, match="somebody deleted it after this program connected"):
        await ledger.enqueue_many(send, [{}, {}])
    assert time.monotonic() - began < 4, "before the client gives up waiting"

"""`jobledger webhooks` and `watches`, as a person and a program use them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

from jobledger.ledger import Ledger, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.hooks.watch import WATCH, Judge
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.webhooks.changes import change_watch, find_webhook
from jobledger.ledger.webhooks.secrets import Secrets

TO = ("--to", "https://shop.example/hooks?key=hidden", "--event", "completed", "--event", "failed")


@task(queue="orders")
async def pack(number: int) -> int:
    return number


@pytest.fixture
def cli(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "80")
    return cli


def test_a_webhook_is_set_changed_shown_paused_and_removed(cli: CommandLine) -> None:
    def run(*words: str) -> str:
        answer = cli.run("webhooks", *words, *cli.where)
        assert answer.code == 0, answer
        return answer.out

    assert "there is no webhook; make one with" in run("list")
    made = run("set", "shop", *TO, "--secret", "env:SHOP", "--queue", "orders")
    assert made == "webhook shop is active: completed, failed of queue orders to https://shop.example/...\n"
    run("set", "shop", "--include", "result", "--header", "X-Team=shop")
    shown = run("show", "shop")
    for words in ("active", "result", "env:SHOP", "X-Team: shop", "set completed, failed of queue orders"):
        assert words in shown
    assert "hidden" not in shown
    run("pause", "shop", "--reason", "the receiver moves")
    assert "paused: the receiver moves" in run("show", "shop")
    listed = run("list")
    assert "paused" in listed
    run("resume", "shop")
    run("rotate", "shop", "--secret", "env:NEW", "--keep-old", "1h")
    assert "env:NEW, env:SHOP" in run("show", "shop")
    run("remove", "shop")
    assert "there is no webhook" in run("list")
    assert cli.run("webhooks", "pause", "shop", *cli.where).code == 3


def test_a_secret_is_made_sealed_and_shown_once(cli: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "key"
    assert cli.run("webhooks", "keygen", str(key)).code == 0
    assert cli.run("webhooks", "keygen", str(key)).code == 2
    made = cli.run("webhooks", "set", "shop", *TO, "--new-secret", "--key-file", str(key), *cli.where)
    secret = made.out.splitlines()[-1]
    assert secret.startswith("whsec_")

    async def kept(ledger: Ledger) -> tuple[str, ...]:
        return (await find_webhook(ledger.log, "shop")).definition.secrets

    [reference] = cli.with_ledger(kept)
    assert secret not in reference
    assert Secrets({}, key).read(reference).decode() == secret
    shown = cli.run("webhooks", "show", "shop", "--json", *cli.where)
    assert shown.lines[0]["info"]["definition"]["secrets"] == ["sealed"]
    assert reference not in cli.run("events", "tail", *cli.where).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "shop"), "say what it is to do"),
        (("set", "shop", "--event", "completed"), "one target"),
        (
            ("set", "shop", "--to", "http://a.example", "--event", "completed", "--secret", "env:A"),
            "not encrypted",
        ),
        (("set", "shop", *TO, "--secret", "hunter2"), "no reference to a secret"),
        (("set", "shop", *TO, "--new-secret"), "needs --key-file"),
        (("set", "shop", "--enqueue", "bill", "--event", "completed"), "would match it again"),
        (("set", "shop", "--in-queue", "q"), "give both"),
        (("rotate", "shop"), "name the new secret"),
        (("redeliver", "shop", "--since", "1h", "--only", "some"), "neither failed nor all"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    cli: CommandLine, words: tuple[str, ...], said: str
) -> None:
    answer = cli.run("webhooks", *words, *cli.where)
    assert (answer.code, said in answer.err.replace("\n", " ")) == (2, True), answer
    assert "hunter2" not in answer.err


def test_a_webhook_that_enqueues_takes_the_queue_of_its_task(cli: CommandLine) -> None:
    @task(queue="billing")
    async def invoice() -> None: ...

    async def announce(ledger: Ledger) -> None:
        entry = entry_of(invoice, worker="w-1", at=ledger.clock.now())
        await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)

    cli.with_ledger(announce)
    for name, more, queue in (
        ("known", (), "billing"),
        ("chosen", ("--in-queue", "own"), "own"),
    ):
        given = ("--enqueue", "invoice", *more, "--event", "completed", "--task", "pack")
        assert cli.run("webhooks", "set", name, *given, *cli.where).code == 0
        shown = cli.run("webhooks", "show", name, "--json", *cli.where).lines[0]
        assert shown["info"]["definition"]["target"] == {"task": "invoice", "queue": queue}
    given = ("--enqueue", "nobodys", "--event", "completed", "--task", "pack")
    assert cli.run("webhooks", "set", "unknown", *given, *cli.where).code == 0
    shown = cli.run("webhooks", "show", "unknown", "--json", *cli.where).lines[0]
    assert shown["info"]["definition"]["target"]["queue"] == "default"


def test_redelivery_is_planned_first(cli: CommandLine) -> None:
    async def enqueue(ledger: Ledger) -> None:
        for number in range(3):
            await ledger.enqueue(pack, number=number)

    cli.with_ledger(enqueue)
    given = ("--enqueue", "bill", "--in-queue", "billing", "--event", "queued", "--task", "pack")
    assert cli.run("webhooks", "set", "shop", *given, *cli.where).code == 0
    since = f"{datetime.now(UTC) - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"
    again = ("webhooks", "redeliver", "shop", "--since", since, *cli.where)
    planned = cli.run(*again, "--plan")
    assert "3 events match: 0 arrived, 0 are under way, 3 never arrived and are to be sent" in planned.out
    assert planned.out.endswith("nothing was sent\n")
    assert cli.run(*again, "--json").code == 2  # a program says --yes
    done = cli.run(*again, "--yes", "--json").lines[0]
    assert (done["owed"], done["made"]) == (3, 3)
    left = cli.run(*again, "--yes", "--json").lines[0]
    assert (left["owed"], left["under_way"], left["made"]) == (0, 3, None)


def test_watches_are_set_listed_shown_and_removed(cli: CommandLine) -> None:
    assert "there is no watch" in cli.run("watches", "list", *cli.where).out
    given = ("--figure", "depth", "--queue", "orders", "--above", "10", "--for", "1m")
    made = cli.run("watches", "set", "deep", *given, *cli.where)
    assert made.out == "watch deep, quiet: depth of queue orders above 10 for 60 s\n"
    assert cli.run("watches", "set", "bad", "--figure", "size", "--above", "1", *cli.where).code == 2
    assert cli.run("watches", "set", "bad", "--figure", "depth", *cli.where).code == 2
    assert cli.run("watches", "set", "bad", "--figure", "error_rate", "--above", "3", *cli.where).code == 2

    async def fire(ledger: Ledger) -> None:
        watch = (await look(ledger.log, WATCH, "deep")).state
        assert watch is not None
        await change_watch(ledger, "deep", Judge(value=12, position=9, sequence=watch.sequence, fires=True))

    cli.with_ledger(fire)
    assert "fires" in cli.run("watches", "list", *cli.where).out
    assert "firing depth is 12, watched:" in cli.run("watches", "show", "deep", *cli.where).out
    assert cli.run("watches", "show", "deep", "--json", *cli.where).lines[0]["info"]["firing"] is True
    assert cli.run("watches", "remove", "deep", *cli.where).code == 0
    assert cli.run("watches", "remove", "deep", *cli.where).code == 3

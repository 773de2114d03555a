"""Keys of the gateway, from the command line: made, listed, shown, rotated, revoked; and what an archive run leaves."""

from __future__ import annotations

import asyncio
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from tests.support.command_line import CommandLine
from tests.support.limited import archive_beyond
from tests.support.tables import each_row

from jobledger.admin.keys import Grant, create_key, create_link, list_keys, revoke_key, rotate_key
from jobledger.ledger import Ledger
from jobledger.ledger.access.keys import all_keys, change_key
from jobledger.ledger.access.secret import new_key, read_key
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.key import CreateKey
from jobledger.ledger.nats.books.key_uses import KeyUse, ensure_uses, read_uses, write_use

VIEWER = Grant(role="viewer")


def test_a_key_is_made_listed_shown_rotated_and_revoked(cli: CommandLine) -> None:
    def run(*words: str) -> str:
        found = cli.run("keys", *words, *cli.where)
        assert found.code == 0, found
        return found.out

    assert "there is no key" in run("list")
    made = cli.run(
        "keys", "create", "ci", "--role", "enqueuer", "--permission", "view", "--queue", "billing-*",
        "--expires", "90d", "--reason", "the nightly build", *cli.where,
    )  # fmt: skip
    secret = read_key(made.out.strip())
    assert secret is not None
    assert "enqueuer view, queues billing-*" in made.err
    assert made.out.strip() not in made.err
    run("create", "ops", "--role", "admin")
    rows = cli.run("keys", "list", "--json", *cli.where).lines
    assert [(row["name"], row["standing"], row["permissions"]) for row in rows] == [
        ("ci", "live", ["view", "queue"]),
        ("ops", "live", ["view", "payloads", "queue", "run", "cancel", "review", "manage", "erase", "admin"]),
    ]
    assert "sha256" not in rows[0]
    assert "secret" not in rows[0]

    async def use(ledger: Ledger) -> None:
        await ensure_uses(ledger.inbox, ledger.names, 1)
        await write_use(
            ledger.inbox, ledger.names, KeyUse(key=secret.key, at=datetime.now(UTC), client="10.0.0.7")
        )

    cli.with_ledger(use)
    again = cli.run("keys", "rotate", secret.key, "--grace", "1h", *cli.where)
    rotated = read_key(again.out.strip())
    assert rotated is not None
    assert (rotated.key, rotated.sha256 == secret.sha256) == (secret.key, False)
    assert "the old one works until" in again.err
    shown = run("show", secret.key)
    assert [
        word for word in ("last used", "10.0.0.7", "old secret", "the nightly build") if word not in shown
    ] == []
    assert shown.index("rotated") < shown.index("created")
    assert run("revoke", secret.key, "--reason", "gone") == f"key {secret.key} of ci is revoked\n"
    assert [row["name"] for row in cli.run("keys", "list", "--json", *cli.where).lines] == ["ops"]
    assert "revoked" in run("list", "--all")
    assert cli.run("keys", "revoke", secret.key, *cli.where).code == 4


def test_a_link_is_an_address_of_the_gateway(cli: CommandLine) -> None:
    said = cli.run(
        "keys", "link", "dana", "--role", "operator", "--gateway", "https://jobs.example/", *cli.where
    )
    address, _, secret = said.out.strip().partition("?link=")
    assert (address, said.code) == ("https://jobs.example/login", 0)
    assert read_key(secret) is not None
    (row,) = cli.run("keys", "list", "--json", *cli.where).lines
    assert row["standing"] == "link"


@each_row(
    ("words", "sentence"),
    [
        (("create", "ci"), "a key needs a role"),
        (
            ("create", "ci", "--role", "root"),
            "--role must be viewer, enqueuer, operator or admin, got 'root'",
        ),
        (("create", "ci", "--permission", "fly"), "--permission must be view, payloads, "),
        (("create", "a b", "--role", "viewer"), "the name of a key must be"),
        (("create", "ci", "--role", "viewer", "--queue", "a.b"), "queues must be patterns"),
        (("link", "ci", "--role", "root"), "there is no role 'root': choose viewer"),
        (("link", "ci", "--role", "viewer", "--gateway", "jobs.example"), "is no address"),
        (("rotate", "nobody000000"), "there is no key nobody000000"),
        (("show", "a.b"), "id of a key"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(
    cli: CommandLine, words: tuple[str, ...], sentence: str
) -> None:
    found = cli.run("keys", *words, *cli.where)
    assert found.code in {2, 3}, found
    assert sentence in found.err
    assert cli.run("keys", "list", "--json", *cli.where).lines == []


def test_of_two_who_use_a_link_or_rotate_a_key_at_once_each_is_told_the_truth(cli: CommandLine) -> None:
    async def race(ledger: Ledger) -> None:
        made = await create_key(ledger, "ci", VIEWER, by="ann")
        key = made.info.key
        found = await asyncio.gather(*(rotate_key(ledger, key, grace_s=60, by="ann") for _ in range(2)))
        kept = (await all_keys(ledger.log))[key]
        digests = {read.sha256 for each in found if (read := read_key(each.secret)) is not None}
        assert {kept.sha256, kept.previous} == digests
        ended = await asyncio.gather(
            *(revoke_key(ledger, key, by="ann") for _ in range(3)), return_exceptions=True
        )
        assert sorted(isinstance(each, RefusedError) for each in ended) == [False, True, True]
        same = new_key()
        create = CreateKey(name="x", sha256=same.sha256, **msgspec.structs.asdict(VIEWER))
        twice = [change_key(ledger, same.key, create, by="ann") for _ in range(2)]
        assert (
            sum(
                isinstance(each, RefusedError)
                for each in await asyncio.gather(*twice, return_exceptions=True)
            )
            == 1
        )

    cli.with_ledger(race)


def test_an_archive_run_keeps_what_can_be_used_and_lets_go_of_what_ended(
    cli: CommandLine, tmp_path: Path
) -> None:
    async def go(ledger: Ledger) -> None:
        kept = await create_key(ledger, "kept", VIEWER, by="ann")
        gone = await create_key(ledger, "gone", VIEWER, by="ann")
        await revoke_key(ledger, gone.info.key, by="ann")
        over = await create_link(ledger, "over", VIEWER, valid_s=0.05, session_s=0.05, by="ann")
        before = (await all_keys(ledger.log))[kept.info.key]
        while ledger.clock.now() < (over.info.expires_at or ledger.clock.now()) + timedelta(milliseconds=1):
            await asyncio.sleep(0.01)
        await archive_beyond(ledger, tmp_path / "archive", (await ledger.log.head()).last_sequence)
        keys = await all_keys(ledger.log)
        assert set(keys) == {kept.info.key}
        after = keys[kept.info.key]
        assert after.sequence > before.sequence
        assert (after.sha256, after.made_at, after.made_by) == (before.sha256, before.made_at, "ann")
        await rotate_key(ledger, kept.info.key, by="bob")
        assert [each.created_by for each in await list_keys(ledger)] == ["ann"]

    cli.with_ledger(go)
    found = cli.run("audit", "verify", *cli.where)
    assert found.code == 0, found


def test_no_event_holds_a_secret(cli: CommandLine) -> None:
    async def go(ledger: Ledger) -> None:
        made = await create_key(ledger, "ci", VIEWER, by="ann")
        await rotate_key(ledger, made.info.key, grace_s=9, by="ann")
        batches = [batch async for batch in ledger.log.read_messages()]
        stored = b"".join(message.data for batch in batches for message in batch)
        assert made.secret.rpartition("_")[2].encode() not in stored
        assert stored.count(b'"sha256"') == 2

    cli.with_ledger(go)


def test_the_last_uses_of_more_keys_than_one_answer_has_are_told(cli: CommandLine) -> None:
    async def work(ledger: Ledger) -> None:
        made = [(await create_key(ledger, name, VIEWER, by="ann")).info.key for name in ("one", "two")]
        ids = [*(f"gone{number}" for number in range(1_100)), made[0]]
        await ensure_uses(ledger.inbox, ledger.names, 1)
        uses = (KeyUse(key=each, at=datetime.now(UTC)) for each in ids)
        await asyncio.gather(*(write_use(ledger.inbox, ledger.names, each) for each in uses))
        used = {each.key: each.last_used_at is not None for each in await list_keys(ledger)}
        assert used == {made[0]: True, made[1]: False}
        assert len(await read_uses(ledger.connection, ledger.inbox, ledger.names, [*ids, made[1]])) == 1_101

    cli.with_ledger(work)


def test_the_first_key_is_made_of_a_file_and_stands_in_the_ledger_once(
    cli: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "keys" / "first.key"

    def init() -> dict[str, Any]:
        (said,) = cli.run("init", "--first-key-file", str(file), "--json", *cli.where).lines
        return said

    assert init()["first_key"] is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text(encoding="utf-8").strip()
    shown = read_key(text)
    assert shown is not None
    assert init()["first_key"] is None  # at the next start
    assert file.read_text(encoding="utf-8").strip() == text
    (row,) = cli.run("keys", "list", "--json", *cli.where).lines
    assert (row["key"], row["name"], row["role"]) == (shown.key, "first", "admin")
    cli.run("keys", "revoke", shown.key, *cli.where)
    assert init()["first_key"] is None  # nor does a key come back that was revoked
    assert cli.run("keys", "list", "--json", *cli.where).lines == []


def test_a_file_that_holds_no_key_is_refused_and_nothing_is_made(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "first.key"
    file.write_text("a password\n", encoding="utf-8")
    found = cli.run("init", "--first-key-file", str(file), *cli.where)
    assert found.code == 2
    assert f"{file} holds no key, which is jl_ID_SECRET" in " ".join(found.err.split())
    assert "a password" not in found.err
    found = cli.run("init", "--first-key-file", str(tmp_path / "first.key" / "in-a-file"), *cli.where)
    assert found.code == 2
    assert "the first key cannot be kept in" in found.err
    assert cli.run("keys", "list", "--json", *cli.where).lines == []

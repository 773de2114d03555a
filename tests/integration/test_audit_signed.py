"""A verdict is dated, says of which ledger it is and with what it was made, and may be signed by the sealer's key."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from tests.support.command_line import Answer, CommandLine
from tests.support.history import write_history

from jobledger.ledger import Ledger
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.streams import find_stream

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


class Cli(CommandLine):
    """`jobledger audit` on a ledger of the test's own, with two keys."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.folder = folder
        self.with_ledger(lambda ledger: write_history(ledger.log))
        for name in ("ours", "theirs"):
            assert self.run("audit", "keygen", self.file(f"{name}.pem")).code == 0

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def __call__(self, *words: str) -> Answer:
        return self.run("audit", "verify", *self.where, "--projection", self.file("p.db"), *words)

    def signed(self) -> dict[str, Any]:
        """Check the ledger, and return the signed report."""
        answer = self("--report", self.file("report.json"), "--sign", self.file("ours.pem"))
        assert answer.code == 0, answer.err
        assert "signed by the key" in answer.err
        found: dict[str, Any] = json.loads(Path(self.file("report.json")).read_bytes())
        return found

    def against(self, key: str = "ours") -> Answer:
        return self(
            "--against", self.file("report.json"), "--seal-key", self.file(f"{key}.pem.pub"), "--json"
        )


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(nats_server.url, tmp_path, capsys)


def test_a_report_says_when_by_what_and_of_which_ledger_it_was_made(cli: Cli) -> None:
    async def created(ledger: Ledger) -> str:
        stream = await find_stream(ledger.inbox, ledger.names.ledger_stream)
        assert stream is not None
        return stream.created

    assert (
        cli.run(
            "audit", "seal", "--key", cli.file("ours.pem"), "--publish", cli.file("seals"), *cli.where
        ).code
        == 0
    )
    cli.signed()
    first = Path(cli.file("report.json")).read_bytes()
    published = ("--seal", cli.file("seals"), "--seal-key", cli.file("ours.pem.pub"))
    (body,) = cli("--against", cli.file("report.json"), *published, "--json").lines
    made = body["made"]
    assert abs(datetime.fromisoformat(made["at"]) - datetime.now(UTC)) < timedelta(minutes=1)
    assert (made["jobledger"], made["url"], made["environment"]) == (VERSION, cli.url, cli.environment)
    assert made["stream_created_at"] == cli.with_ledger(created)
    (key,) = made["keys"]
    assert re.fullmatch("[0-9a-f]{64}", key)
    evidence = {each["what"]: each for each in made["evidence"]}
    assert evidence["earlier report"]["sha256"] == hashlib.sha256(first).hexdigest()
    assert evidence["published seals"]["file"] == cli.file("seals")
    compared = {each["what"]: each for each in body["compared"]}
    assert (compared["earlier report"]["agrees"], compared["earlier report"]["signed"]) == (True, True)
    assert compared["published seals"]["signed"] is True
    assert "a signature was not checked" not in " ".join(body["not_proven"])


def test_a_signature_can_be_checked_without_this_program(cli: Cli) -> None:
    body = cli.signed()
    data = Path(cli.file("report.json")).read_bytes()
    text = b"jobledger report 1\n" + data.replace(body["signature"].encode(), b"")
    key = load_pem_public_key(Path(cli.file("ours.pem.pub")).read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    assert body["key"] == hashlib.sha256(key.public_bytes_raw()).hexdigest()
    key.verify(bytes.fromhex(body["signature"]), text)


def test_whatever_is_altered_in_a_signed_report_is_refused(cli: Cli) -> None:
    cli.signed()
    path = Path(cli.file("report.json"))
    data = path.read_bytes()
    assert cli.against().code == 0
    changes = [
        data.replace(b'"sound": true', b'"sound": false'),
        data.replace(b'"environment": "', b'"environment": "x'),
        data.replace(b'"head_hash": "', b'"head_hash": "0', 1),
        data + b"\n",
        re.sub(rb'"elapsed_s": [0-9.e-]+', b'"elapsed_s": 1.5', data),
        re.sub(
            rb'"signature": "(.)',
            lambda found: b'"signature": "' + (b"1" if found[1] == b"0" else b"0"),
            data,
        ),
    ]
    for changed in changes:
        assert changed != data
        path.write_bytes(changed)
        answer = cli.against()
        assert (answer.code, "was altered" in answer.err) == (2, True), answer.err
    path.write_bytes(data)
    answer = cli.against("theirs")
    assert (answer.code, "which is not among those of --seal-key" in answer.err) == (2, True)


def test_a_signature_that_was_not_checked_is_not_proven(cli: Cli) -> None:
    cli.signed()
    (body,) = cli("--against", cli.file("report.json"), "--json").lines
    (line,) = [each for each in body["compared"] if each["what"] == "earlier report"]
    assert line["signed"] is False
    assert any("a signature was not checked" in each for each in body["not_proven"])
    cli("--report", cli.file("report.json"))  # without a signature
    (body,) = cli.against().lines
    assert [each["signed"] for each in body["compared"] if each["what"] == "earlier report"] == [None]


def test_what_is_asked_of_a_signature_must_make_sense(cli: Cli) -> None:
    answer = cli("--sign", cli.file("ours.pem"))
    assert (answer.code, "--sign signs the file of --report" in answer.err) == (2, True)
    answer = cli("--report", cli.file("r.json"), "--sign", cli.file("ours.pem.pub"))
    assert (answer.code, "can be read by others" in answer.err or "no private key" in answer.err) == (2, True)
    assert not Path(cli.file("r.json")).exists()


def test_the_report_of_an_export_names_the_export(cli: Cli) -> None:
    folder = cli.file("export")
    assert cli.run("audit", "export", folder, *cli.where).code == 0
    words = ("--report", cli.file("report.json"), "--sign", cli.file("ours.pem"))
    assert cli.run("audit", "verify", folder, *words).code == 0
    made = json.loads(Path(cli.file("report.json")).read_bytes())["made"]
    assert (made["export"], made["url"], made["environment"]) == (folder, "", cli.environment)
    assert cli.against().code == 0, "the ledger continues its export"

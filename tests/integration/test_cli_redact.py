"""`jobledger audit redact` at the command line: what docs/cli.md shows, what is refused, and a disk that is full."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from tests.integration.test_cli_archive import Cli, cli, normal, now, shown_in_docs

from jobledger.ledger import Ledger
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR

__all__ = ["cli"]
REDACT = ("redact", "--archive", "archive", "--reason", "request 4711")


@pytest.fixture
def archived(cli: Cli) -> Cli:
    """The ledger of docs/cli.md, after its archive run."""
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    return cli


def files() -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in Path("archive").rglob("*") if each.is_file()}


def last(cli: Cli) -> int:
    async def head(ledger: Ledger) -> int:
        return (await ledger.log.head()).last_sequence

    return cli.with_ledger(head)


def test_the_documented_outputs_are_printed(archived: Cli) -> None:
    documented = 'audit redact --archive archive --where queue=billing --reason "request 4711"'
    for plan in ("--plan", ""):
        answer = archived(*REDACT, "--where", "queue=billing", *filter(None, [plan]))
        assert answer.code == 0, answer.err
        assert normal(answer.out) == shown_in_docs(f"{documented} {plan}".strip())
    verified = archived("verify", "--archive", "archive")
    assert (verified.code, "not proven: what 2 redacted events said" in verified.out) == (0, True), verified
    assert "redacted: 2 events of the export from 1 on: request 4711" in " ".join(
        archived("trail", "reactor/archive").out.split()
    )


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ((), 2, "name the jobs with --jobs FILE, or choose them with --where WORD=VALUE"),
        (("--jobs", "names", "--where", "queue=billing"), 2, "one of both"),
        (("--where", "billing"), 2, "--where 'billing' is not a pair of the form key=value"),
        (("--where", "colour=red"), 2, "'colour' is no word to choose by: give one of queue, task, tenant"),
        (("--jobs", "missing"), 2, "--jobs missing: No such file or directory"),
        (("--jobs", "rubbish"), 2, "--jobs rubbish, line 3: "),
        (("--jobs", "bytes"), 2, "--jobs bytes: "),
        (("--jobs", "empty"), 2, "--jobs empty names no job"),
        (("--jobs", "."), 2, "--jobs .: "),
        (
            ("--jobs", "strangers"),
            3,
            "neither the archive nor the ledger has billing/nobody: nothing was redacted",
        ),
        (("--where", "queue=billing", "--reason", " "), 2, "give a reason"),
        (("--where", "queue=billing", "--archive", "nowhere"), 3, "there is no archive folder nowhere"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    archived: Cli, words: tuple[str, ...], code: int, problem: str
) -> None:
    texts = {
        "names": b"charge-1\n",
        "rubbish": b"charge-1\n\nbilling/a*b\n",
        "bytes": b"\xff",
        "empty": b"\n",
    }
    for name, text in {**texts, "strangers": b"billing/nobody\ncharge-1\n"}.items():
        Path(name).write_bytes(text)
    before = last(archived)
    answer = archived(*REDACT, *words)
    assert (answer.code, problem in " ".join(answer.err.split())) == (code, True), answer
    assert last(archived) == before


def test_a_file_names_the_jobs(archived: Cli) -> None:
    Path("names").write_text("billing/charge-1\n\n  charge-4\n", encoding="utf-8")
    done = json.loads(archived(*REDACT, "--jobs", "names", "--json").out)
    assert (done["jobs"], done["living"], done["events"]) == (1, 1, 1)


def test_a_disk_that_is_full_leaves_everything_as_it_was(
    archived: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files()
    events, limits = last(archived), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        answer = archived(*REDACT, "--where", "queue=billing")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (answer.code, "fix that and run the command again" in " ".join(answer.err.split())) == (1, True), (
        answer
    )
    assert files() == before
    assert last(archived) == events
    assert archived(*REDACT, "--where", "queue=billing").code == 0
    assert archived("verify", "--archive", "archive").code == 0


def test_signed_and_published_seals_agree_after_a_redaction(archived: Cli) -> None:
    """Seals of events that are moved and redacted later, and a seal of the ledger after that."""
    trusted = ("--seal-key", "seal.pem.pub", "--seal", "seals")
    assert archived.run("audit", "keygen", "seal.pem").code == 0
    verified = archived("verify")
    for words in (
        ("seal", "--key", "seal.pem", "--publish", "seals"),
        ("archive", "--before", now(), "--to", "archive"),
        (*REDACT, "--where", "queue=billing"),
        ("seal", "--key", "seal.pem", "--publish", "seals"),
    ):
        answer = archived(*words)
        assert answer.code == 0, (words, answer)
        verified = archived("verify", "--archive", "archive", *trusted)
        assert (verified.code, "NOT sound" in verified.out) == (0, False), (words, verified)
    assert "redacted events said" in verified.out
    seals = [json.loads(line) for line in Path("seals").read_text(encoding="utf-8").splitlines()]
    assert len(seals) == 2
    roots = [each["seal"]["merkle_root"] for each in seals]
    forged = Path("seals").read_text(encoding="utf-8").replace(*roots)
    Path("seals").write_text(forged, encoding="utf-8")
    assert archived("verify", "--archive", "archive", *trusted).code == 4


@pytest.mark.unsound_ledger("a `redacted` that is none")
@pytest.mark.parametrize(
    "body", [b"no event", b"{}", b'{"type":"archived","v":1}', b'{"type":"redacted","v":1}']
)
def test_a_malformed_fact_keeps_nobody_from_redacting_and_is_told_by_the_check(
    archived: Cli, body: bytes
) -> None:
    """A server's user who may append sends it past every program of ours."""

    async def forge(ledger: Ledger) -> None:
        subject = REACTOR.of_type(ledger.names, "redacted", ARCHIVE)
        await ledger.connection.request(subject, body)

    for plan, events in (("--plan", 2), ("", 2), ("", 0)):
        archived.with_ledger(forge)
        answer = archived(*REDACT, "--where", "queue=billing", "--json", *filter(None, [plan]))
        assert (answer.code, json.loads(answer.out)["events"]) == (0, events), answer
    verified = archived("verify", "--archive", "archive", "--json")
    found = [each["sentence"] for each in json.loads(verified.out)["violations"]]
    assert (verified.code, len(found)) == (4, 3), found
    assert all("is no reactor event" in each for each in found), found

"""`jobledger audit redact` at the command line: what docs/cli.md shows, what is refused, and a disk that is full."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from tests.integration.test_cli_archive import Cli, cli, normal, now, shown_in_docs

from jobledger.ledger import Ledger

__all__ = ["cli"]
REDACT = ("redact", "--archive", "archive", "--reason", "request 4711")


@pytest.fixture
def archived(cli: Cli) -> Cli:
    """The ledger of docs/cli.md, after its archive run."""
    assert cli("archive", "--before", now(), "--to", "archive").code == 0
    return cli


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
    before = {each: each.read_bytes() for each in Path("archive").rglob("*") if each.is_file()}
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
    assert {each: each.read_bytes() for each in Path("archive").rglob("*") if each.is_file()} == before
    assert last(archived) == events
    assert archived(*REDACT, "--where", "queue=billing").code == 0
    assert archived("verify", "--archive", "archive").code == 0

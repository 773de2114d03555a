"""`jobledger audit export`, `verify EXPORT` and `diff` print what is said here, and docs/cli.md shows of `diff`."""

from __future__ import annotations

import json
import re
import secrets
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.stories import BOOM, Story

from jobledger.audit.export.restore import chain_of
from jobledger.cli.main import run
from jobledger.ledger import connect
from jobledger.ledger.model.commands import Dispatch, Fail
from jobledger.ledger.model.log import Entry

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")

#: What a command prints that is too long for the page.
PRINTED = {
    "audit export ledger-2025-01-31": """
10 events in ledger-2025-01-31
range 1 to 10
files 1 file, SIZE
hash d061b1bd604f9e3af32fcae085276a5253b04a7cf119627d87b2328f58e257a0
digest 558e247111579cbb5dfd38ac46f0d2808cbec5c6b7b43713afec4938996d7a9d
check it with `jobledger audit verify ledger-2025-01-31`
""",
    "audit verify ledger-2025-01-31": """
the export is sound
10 events, 3 jobs (completed 2, queued 1), 3 attempts, 0 timers pending
stream sequence 1 to 10 in TIME
not proven: that the export is of this very ledger and was not cut off or rewritten: only an earlier report, a \
seal that was kept elsewhere or the ledger itself tells
not proven: when the server stored an event: its time (`stored_at`) is in no hash and no seal, and was only held \
to the event's own time and to its neighbours
head 10
hash d061b1bd604f9e3af32fcae085276a5253b04a7cf119627d87b2328f58e257a0
digest 558e247111579cbb5dfd38ac46f0d2808cbec5c6b7b43713afec4938996d7a9d
times the server's and the events' own are APART
""",
}


def told() -> Story:
    """Ten events whose bytes are always the same, and so are their hashes."""
    story = Story()
    story.enqueue("welcome-1")
    story.enqueue("welcome-2")
    story.claim("welcome-1")
    story.complete("welcome-1")
    story.claim("welcome-2")
    retry_at = story.now + timedelta(seconds=30)
    story.do("welcome-2", Fail(epoch=story.epoch("welcome-2"), error=BOOM, retry_at=retry_at))
    story.now = retry_at
    story.do("welcome-2", Dispatch(cause="retried"))
    story.run("welcome-2")
    story.enqueue("welcome-3")
    return story


async def stored(url: str, environment: str) -> None:
    async with connect(url, environment=environment, ledger_bytes_max=16 << 20) as ledger:
        for message in told().messages:
            subject = message.subject.replace("ledger.", f"{ledger.names.ledger_root}.", 1)
            last = await ledger.log.last(chain_of(subject))
            expected = 0 if last is None else last.stream_sequence
            await ledger.log.append([Entry(subject, message.data, chain_of(subject), expected)])


def normal(text: str) -> str:
    """Return text without what differs from run to run."""
    text = re.sub(r"in [\d.]+ s\b", "in TIME", text)
    # The story's events are of another year than the server that stores them here.
    text = re.sub(r"^notice: the server's time of .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"(the events' own are) .*", r"\1 APART", text)
    text = re.sub(r"[\d.]+ (KiB|B)\b", "SIZE", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).strip()


def shown_in_docs(command: str) -> str:
    pattern = rf"^\$ jobledger {re.escape(command)}\n(.*?)(?=^\$|^```)"
    found = re.search(pattern, DOCS, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, command
    return normal(found[1])


def test_each_command_prints_what_it_should(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    environment = f"t_{secrets.token_hex(6)}"
    anyio.run(stored, nats_server.url, environment)
    for words, text in {**PRINTED, "audit diff 3 head": shown_in_docs("audit diff 3 head")}.items():
        code = run([*words.split(), "--url", nats_server.url, "--environment", environment])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        assert normal(shown.out + shown.err) == text.strip(), shown.out + shown.err


def test_tables_are_written_as_of_a_moment(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = f"t_{secrets.token_hex(6)}"
    anyio.run(stored, nats_server.url, environment)

    def answer(*words: str) -> tuple[int, str]:
        at = ("--url", nats_server.url, "--environment", environment, "--projection", "rows.db")
        code = run(["audit", "export", *words, "--tables", *at])
        shown = capsys.readouterr()
        return code, shown.out or shown.err

    code, said = answer("now")
    assert code == 0, said
    assert "tables in now, as of stream sequence 10" in said
    code, said = answer("then", "--to", "3", "--json")
    assert (code, json.loads(said)["rows"]) == (0, {"jobs": 2, "attempts": 1})
    assert sorted(file.name for file in Path("then").iterdir()) == ["attempts.parquet", "jobs.parquet"]
    for words in (("--from", "2"), ("--job", "welcome-1"), ("--without-payloads",)):
        code, said = answer("never", *words)
        assert (code, words[0] in said, Path("never").exists()) == (2, True, False), said
    code, said = answer("then")
    assert (code, "exists: name a folder" in said) == (2, True), said

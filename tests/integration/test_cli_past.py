"""`--at` and `--sequence`, `queues list` and `projection run MODULE:Class`, as commands against a real server."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.limits import LIMIT_S
from tests.support.tables import each_row

from jobledger.cli.main import run
from jobledger.ledger import JobState, Ledger, task
from jobledger.ledger.model.commands import Claim, Command, Complete, Fail
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.subjects import JobRef

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
MODELS = '''
class Counts:
    """How many events there were."""

    name = "counts"
    version = 1
    tables = {"counts": {"events": int}}

    def apply(self, connection, events):
        for stored in events:
            if not connection.execute("UPDATE counts SET events = events + 1").rowcount:
                connection.execute("INSERT INTO counts VALUES (1)")


class Newer(Counts):
    version = 2


class Failing(Counts):
    def apply(self, connection, events):
        super().apply(connection, events[:5])
        for stored in events:
            if stored.stream_sequence == 6:
                raise ValueError("what is this?")


class Picky(Counts):
    def __init__(self, what):
        pass


class Shapeless:
    name = "shapeless"


a_function = len
'''


@task(queue="email")
async def send_welcome(user: int) -> None: ...


@task(queue="billing", max_attempts=1)
async def charge(cents: int) -> None: ...


async def claim(ledger: Ledger, ref: JobRef) -> int:
    return (await ledger.execute(ref, Claim(worker="web-1-0a", lease_s=15))).claim_epoch


async def tell(ledger: Ledger) -> None:
    """Append the ten events that docs/cli.md shows."""
    welcome = (await ledger.enqueue(send_welcome.options(id="welcome-7"), 7)).ref
    first = (await ledger.enqueue(charge.options(id="charge-1"), 100)).ref
    await ledger.execute(welcome, Complete(epoch=await claim(ledger, welcome)))
    epoch = await claim(ledger, first)
    second = (await ledger.enqueue(charge.options(id="charge-2", priority="high"), 0)).ref
    await ledger.execute(first, Complete(epoch=epoch))
    error = ErrorInfo(kind="exception", type="ValueError", message="cannot charge 0 cents")
    failed: Command = Fail(epoch=await claim(ledger, second), error=error, give_up="rejected")
    await ledger.execute(second, failed)
    assert (await ledger.log.head()).last_sequence == 10


class Commands:
    """The command line on one ledger, in this process."""

    def __init__(self, ledger: Ledger, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.ledger = ledger
        self.projection = folder / "projection.db"
        self._where = ("--url", ledger.config.url, "--environment", ledger.names.environment)
        self._capsys = capsys

    def __call__(self, *words: str, ours: bool = True) -> tuple[int, str, str]:
        where = [*self._where, *(("--projection", str(self.projection)) if ours else ())]
        self._capsys.readouterr()
        code = run([*words, *where])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def objects(self, *words: str, **options: Any) -> list[dict[str, Any]]:
        code, out, err = self(*words, "--json", **options)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
async def commands(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOBLEDGER_PROJECTION", raising=False)
    await tell(ledger)
    return Commands(ledger, tmp_path, capsys)


def normal(text: str) -> str:
    """Return text without what differs from run to run: times, spans, the width of columns."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "TIME", text)
    text = re.sub(r"\b[\d.]+ (ms|s|min)\b", "SPAN", text)
    return "\n".join(" ".join(line.replace("─", " ").split()) for line in text.splitlines()).strip()


def test_the_documented_outputs_are_printed(commands: Commands) -> None:
    page = DOCS.read_text(encoding="utf-8")
    section = page[page.index("## As of a past moment") :]
    block = section[section.index("```console\n") + len("```console\n") :].partition("```")[0]
    steps = [part.partition("\n") for part in re.split(r"^\$ jobledger ", block, flags=re.MULTILINE)[1:]]
    assert len(steps) == 4
    for words, _, shown in steps:
        code, out, err = commands(*words.split())
        assert (code != 0) == shown.startswith("jobledger: ")
        # The note on the moment goes to stderr, and so before the table on a terminal.
        assert normal(err + out) == normal(shown), words


def test_lists_and_jobs_are_as_they_were(commands: Commands) -> None:
    events = commands.objects("events", "tail", ours=False)
    sixth = events[5]["stored_at"]
    for moment in (("--sequence", "6"), ("--at", sixth)):
        jobs = commands.objects("jobs", "list", *moment)
        assert {each["id"]: each["status"] for each in jobs} == {
            "welcome-7": "completed",
            "charge-1": "running",
            "charge-2": "queued",
        }
        (job,) = commands.objects("jobs", "show", "charge-1", *moment)
        assert (job["status"], job["last_sequence"], len(job["attempts"])) == ("running", 5, 1)
        assert job["as_of"]["stream_sequence"] == 6
    assert not commands.projection.exists()  # the past needs no present
    assert [each["status"] for each in commands.objects("jobs", "list", "--state", "running")] == []
    before = "1999-12-31T23:59:59Z"
    for moment in (("--sequence", "0"), ("--at", before)):
        assert commands.objects("queues", "list", *moment) == []
        assert commands.objects("jobs", "list", *moment) == []
        assert (commands("jobs", "show", "charge-1", *moment))[0] == 3
    code, out, err = commands("jobs", "show", "charge-1", "--sequence", "6")
    assert code == 0
    assert "(stream sequence 6)" in err
    assert "completed" not in out


def test_queues_are_counted_by_state_and_priority(commands: Commands) -> None:
    billing, email = commands.objects("queues", "list")
    assert (billing["queue"], email["queue"]) == ("billing", "email")
    counts = {state: count for state, count in billing["counts"].items() if count}
    assert counts == {"completed": 1, "dead_lettered": 1}
    assert list(billing["counts"]) == [state.value for state in JobState]
    high, normal_ = commands.objects(
        "queues", "list", "--by-priority", "--queue", "billing", "--sequence", "6"
    )
    assert (
        high["priority"],
        high["counts"]["queued"],
        normal_["priority"],
        normal_["counts"]["running"],
    ) == (
        "high",
        1,
        "normal",
        1,
    )
    assert high["oldest_waiting"] is not None
    assert normal_["oldest_running"] is not None
    code, out, _ = commands("queues", "list", "--by-priority")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


@each_row(
    ("words", "code", "sentence"),
    [
        (
            ["--at", "2025-01-01", "--sequence", "3"],
            2,
            "--at and --sequence both name a moment: give one of them",
        ),
        (["--sequence", "11"], 2, "stream sequence 11 is still to come: the ledger ends at 10"),
        (["--sequence", "-1"], 2, "sequences begin at 1"),
        (["--at", "2261-01-01"], 2, "is still to come: ask for a past time"),
        (["--at", "noon"], 2, "--at 'noon' is not a time such as"),
    ],
)
def test_moments_that_cannot_be_are_usage_errors(
    commands: Commands, words: list[str], code: int, sentence: str
) -> None:
    for command in (["jobs", "list"], ["queues", "list"], ["jobs", "show", "charge-1"]):
        found, out, err = commands(*command, *words)
        assert (found, out) == (code, "")
        assert sentence in err
        assert len(err.splitlines()) == 1


def test_a_read_model_is_followed_beside_ours(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "models_of_past.py").write_text(MODELS, encoding="utf-8")
    file = Path("own.db")

    def events() -> int:
        with sqlite3.connect(file) as connection:
            found = connection.execute("SELECT events FROM counts").fetchone()[0]
        connection.close()
        return int(found)

    def once(name: str, *more: str) -> Any:
        return commands(
            "projection", "run", f"models_of_past:{name}", "--once", "--file", str(file), *more, ours=False
        )

    assert once("Counts")[:2] == (0, "own.db holds counts up to stream sequence 10\n")
    assert events() == 10
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE counts SET events = 99")
    connection.close()
    assert once("Counts")[0] == 0
    assert events() == 99  # nothing is read twice
    assert once("Counts", "--rebuild")[0] == 0
    assert events() == 10
    assert once("Newer")[0] == 0
    assert events() == 10
    code, _, err = once("Counts")
    assert code == 4
    assert "with `jobledger projection run models_of_past:Counts --rebuild`" in err
    code, _, err = once("Failing", "--rebuild")
    assert code == 1
    assert "read model models_of_past:Failing failed at stream sequence 6 (`queued` of job charge-2)" in err
    assert "ValueError: what is this?" in err
    assert events() == 10  # the old one stays where it was
    assert [
        each["position"]
        for each in commands.objects("projection", "run", "models_of_past.py:Newer", "--once", ours=False)
    ] == [10]
    assert len(list((tmp_path / "data" / "jobledger" / "read-models").glob("*-counts.db"))) == 1


def test_a_file_of_ours_is_never_a_read_models(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "models_of_past.py").write_text(MODELS, encoding="utf-8")
    commands.objects("jobs", "list", "--projection", "ours.db", ours=False)
    for more in ([], ["--rebuild"]):
        code, _, err = commands(
            "projection", "run", "models_of_past:Counts", "--once", "--file", "ours.db", *more, ours=False
        )
        assert code == 4
        assert "ours.db belongs to something else and is left alone" in err
        assert "`jobledger projection run models_of_past:Counts --rebuild`" in err


@each_row(
    ("words", "sentence"),
    [
        (["models_of_past"], "'models_of_past' names no class: give one as MODULE:Class"),
        ([":Counts"], "names no class"),
        (["models_of_past:"], "names no class"),
        (["no_such_module:Counts"], "there is no module 'no_such_module' on the import path"),
        (["no_such.py:Counts"], "there is no file 'no_such.py'"),
        (["a b:Counts"], "'a b' is not the name of a module"),
        (["models_of_past:Nothing"], "module 'models_of_past' has no class 'Nothing'"),
        (
            ["models_of_past:a_function"],
            "models_of_past:a_function is a builtin_function_or_method, not a class",
        ),
        (["models_of_past:Picky"], "models_of_past:Picky cannot be made without arguments: TypeError"),
        (["models_of_past:Shapeless"], "models_of_past:Shapeless is no read model: it has no `version`"),
        (["broken_models:Counts"], "module broken_models cannot be imported: ZeroDivisionError"),
        (
            ["--rebuild"],
            "--rebuild is for a read model, as in MODULE:Class; here it is `jobledger projection rebuild`",
        ),
        (["models_of_past:Counts", "--projection", "x.db"], "for a read model it is --file"),
        (["--file", "x.db"], "--file is for a read model, as in MODULE:Class; here it is --projection"),
    ],
)
def test_a_class_that_cannot_be_a_read_model_is_a_usage_error(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models_of_past.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "broken_models.py").write_text("1 / 0", encoding="utf-8")
    assert run(["projection", "run", *words]) == 2  # said before any server is looked for
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.anyio
async def test_a_following_read_model_ends_in_order_at_sigterm(
    commands: Commands, tmp_path: Path, command: Callable[..., Any]
) -> None:
    (tmp_path / "models_of_past.py").write_text(MODELS, encoding="utf-8")
    where = ("--url", commands.ledger.config.url, "--environment", commands.ledger.names.environment)
    words = ("projection", "run", "models_of_past:Counts", "--file", "own.db", "--json", *where)
    process = await anyio.to_thread.run_sync(lambda: command(*words))
    ready = await anyio.to_thread.run_sync(process.line)
    assert (ready["read_model"], ready["position"]) == ("counts", 10)
    sequence = (await commands.ledger.enqueue(send_welcome, 8)).sequence
    with anyio.fail_after(LIMIT_S):
        while True:  # another process writes; the file is all that tells of it
            with sqlite3.connect(tmp_path / "own.db") as connection:
                (found,) = connection.execute("SELECT stream_sequence FROM position").fetchone()
            connection.close()
            if found == sequence:
                break
            await anyio.sleep(0.01)
    assert await anyio.to_thread.run_sync(lambda: process.end(signal.SIGTERM)) == 0

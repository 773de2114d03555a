"""Commands that ask and answer, run in this process against a real server: output, exit codes, refusals."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.orders import shout
from tests.support.tables import each_row
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import Ledger, sync
from jobledger.ledger.children import Parent
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import SCHEMA_VERSION

TASKS = """
from jobledger.ledger import task

@task(queue="math")
async def add(a: int, b: int = 1) -> int:
    return a + b

@task(queue="mail", max_attempts=1)
def send(text: str) -> str:
    return text.upper()

@task(queue="math")
async def half(number: float) -> float:
    return number / 2

@task
async def nested(value: list) -> None: ...
"""


class Cli(CommandLine):
    """The command line with a server, an environment of its own and a module of tasks."""

    def __init__(self, url: str, folder: Path, app: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.app = app
        self.projection = folder / "projection.db"

    def __call__(self, *words: str) -> Answer:
        return self.run(*words)

    def there(self, *words: str) -> Answer:
        """Run a command on this test's ledger."""
        where = [*self.where]
        if words[0] in {"jobs", "projection", "doctor"}:
            where += ["--projection", str(self.projection)]
        if words[0] == "enqueue":
            where += ["--app", str(self.app)]
        return self(*words, *where)

    def head(self) -> int:
        answer = self.there("projection", "status", "--json")
        assert answer.code == 0, answer.err
        return int(answer.lines[0]["head"])


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("app") / "tasks_of_test_cli.py"
    path.write_text(TASKS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
async def roomy_server(
    anyio_backend: object, nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmbeddedServer]:
    """Each test has an environment, and each ledger reserves gigabytes of the quota, used or not."""
    server = EmbeddedServer(
        tmp_path_factory.mktemp("nats"),
        port=0,
        durability="process",
        binary=nats_server_binary,
        max_file_store_bytes=1 << 45,
    )
    async with server:
        yield server


@pytest.fixture
def cli(
    roomy_server: EmbeddedServer,
    tmp_path: Path,
    app: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("URL", "ENVIRONMENT", "APP", "QUEUES", "PROJECTION", "DEBUG", "LEDGER_BYTES_MAX"):
        monkeypatch.delenv(f"JOBLEDGER_{name}", raising=False)
    return Cli(roomy_server.url, tmp_path, app, capsys)


def test_a_job_that_a_job_made_names_it(cli: Cli) -> None:
    async def make(ledger: Ledger) -> str:
        own = ledger.on_behalf_of(Parent(job_id="report-7", worker="w-1"))
        return (await own.enqueue(shout, "x")).id

    made = cli.with_ledger(make)
    assert cli.there("jobs", "show", made, "--json").lines[0]["made_by"] == "report-7"
    assert "made by      job report-7" in cli.there("jobs", "show", made).out


def test_enqueue_prints_id_created_and_sequence(cli: Cli) -> None:
    assert cli.there("enqueue", "add", "a=1", "--id", "one").lines == [
        {"id": "one", "created": True, "sequence": 1}
    ]
    for again in (("a=1",), ("a=9", "--on-other-input", "keep")):
        assert cli.there("enqueue", "add", *again, "--id", "one").lines == [
            {"id": "one", "created": False, "sequence": 1}
        ]
    refused = cli.there("enqueue", "add", "a=9", "--id", "one")
    assert refused.code == 4
    assert "with another input (a) and stays as it is" in refused.err
    assert refused.err.rstrip().endswith("(--on-other-input keep)")
    made = cli.there("enqueue", "add", "--input", '{"a": 2, "b": 3}', "--json").lines[0]
    assert (made["created"], made["sequence"]) == (True, 2)


def test_an_input_is_read_from_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "gr\xc3\xbc\xc3\x9fe"}')))
    made = cli.there("enqueue", "send", "--input", "-", "--priority", "high", "--queue", "other").lines[0]
    shown = cli.there("jobs", "show", made["id"], "--json").lines[0]
    assert (shown["input"], shown["priority"], shown["queue"]) == ({"text": "grüße"}, "high", "other")


NOTHING_SENT = [
    (["nope", "a=1"], "no task 'nope'"),
    (["add"], "missing required field `a`"),
    (["add", "a=x"], "a='x' is not int"),
    (["add", "a=1", "c=2"], "no argument 'c'"),
    (["add", "a"], "'a' is not an argument of the form key=value"),
    (["add", "a=1", "=2"], "'=2' is not an argument of the form key=value"),
    (["add", "a=1", "a=2"], "given twice"),
    (["add", "a=1", "--input", "{}"], "not both"),
    (["add", "--input", "[1]"], "must be a JSON object"),
    (["add", "--input", "{"], "not valid JSON"),
    (["add", "--input", '{"a": NaN}'], "not valid JSON"),
    (["add", "--input", '{"a": 1e999}'], "--input"),
    (["half", "number=nan"], "nan"),
    (["half", "number=inf"], "inf"),
    (["nested", "--input", '{"value": ' + "[" * 10_000 + "]" * 10_000 + "}"], "nested deeper than 100"),
    (["nested", "value=" + "[" * 10_000 + "]" * 10_000], "value="),
    (["send", "--input", json.dumps({"text": "x" * 10_000_000})], "the limit is 8,388,608"),
    *(
        (["add", "a=1", option, value], f"{field} {value[:20]!r}"[: len(field) + 10])
        for option, field in (("--id", "job id"), ("--queue", "queue"))
        for value in ("a.b", "a*", "a>", "a b", "a\0b", "x" * 100, "", "ü")
    ),
    (["add", "a=1", "--priority", "urgent"], "--priority"),
    (["add", "a=1", "--max-attempts", "0"], "--max-attempts"),
    (["add", "a=1", "--timeout", "nan"], "timeout"),
    (["add", "a=1", "--ledger-bytes-max", "12"], "ledger_bytes_max"),
]


@each_row("words, said", NOTHING_SENT)
def test_a_wrong_request_gets_a_sentence_and_code_2_without_a_server(
    cli: Cli, words: list[str], said: str
) -> None:
    """Nothing is listening at this address, so whatever were sent would end with code 5."""
    answer = cli("enqueue", *words, "--app", str(cli.app), "--url", "nats://127.0.0.1:1")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert len(answer.err) < 400


def test_a_refused_request_changes_nothing_and_the_next_one_works(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "first")
    for words, _ in NOTHING_SENT[:8]:
        assert cli.there("enqueue", *words).code == 2
    assert cli.head() == 1
    assert cli.there("enqueue", "add", "a=1").lines[0]["sequence"] == 2


def test_too_much_on_stdin_is_not_read_to_its_end(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.BytesIO(b" " * 10_000_000)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stdin))
    answer = cli.there("enqueue", "send", "--input", "-")
    assert (answer.code, answer.out) == (2, "")
    assert "larger than 8,388,608 bytes" in answer.err


def test_jobs_are_listed_filtered_and_counted_up_to_the_head(cli: Cli) -> None:
    for number in range(3):
        cli.there("enqueue", "add", f"a={number}", "--id", f"add-{number}")
    cli.there("enqueue", "send", "text=x", "--id", "send-1")
    assert [job["id"] for job in cli.there("jobs", "list", "--json").lines] == [
        "send-1",
        "add-2",
        "add-1",
        "add-0",
    ]
    assert [job["id"] for job in cli.there("jobs", "list", "--json", "--queue", "mail").lines] == ["send-1"]
    assert [
        job["id"] for job in cli.there("jobs", "list", "--json", "--task", "add", "--limit", "1").lines
    ] == ["add-2"]
    assert cli.there("jobs", "list", "--json", "--state", "completed").lines == []
    assert cli.there("jobs", "list", "--json", "--since", "2999-01-01").lines == []
    (shown,) = cli.there("jobs", "show", "add-1", "--json").lines
    traced = shown["trace"].split("-")[1]
    for words in (traced, traced.upper(), shown["trace"]):
        (found,) = cli.there("jobs", "list", "--json", "--trace", words).lines
        assert (found["id"], found["trace_id"]) == ("add-1", traced)
    assert cli.there("jobs", "list", "--json", "--trace", "0" * 32).lines == []
    refused = cli.there("jobs", "list", "--trace", "add-1")
    assert (refused.code, "32 hexadecimal digits" in refused.err) == (2, True)
    table = cli.there("jobs", "list").out
    assert "send-1" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_job_is_shown_whole_by_id_and_by_unique_prefix(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "report-7")
    cli.there("enqueue", "add", "a=2", "--id", "report-8")
    shown = cli.there("jobs", "show", "report-7", "--json").lines[0]
    wanted = {"id": "report-7", "queue": "math", "task": "add", "status": "queued", "priority": "normal"}
    assert {name: shown[name] for name in wanted} == wanted
    assert (shown["input"], shown["result"], shown["error"]) == ({"a": 1}, None, None)
    assert (shown["completed_at"], shown["attempts"]) == (None, [])
    assert shown["created_at"].endswith("Z")
    ambiguous = cli.there("jobs", "show", "repo")
    assert (ambiguous.code, ambiguous.out) == (4, "")
    assert "report-7" in ambiguous.err
    cli.there("enqueue", "add", "a=2", "--id", "other")
    assert cli.there("jobs", "show", "oth", "--json").lines[0]["id"] == "other"
    human = cli.there("jobs", "show", "oth").out
    assert "queued" in human
    assert max(map(len, human.splitlines())) <= 80


def test_an_id_in_two_queues_needs_the_queue(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "twin")
    cli.there("enqueue", "add", "a=2", "--id", "twin", "--queue", "second")
    assert cli.there("jobs", "show", "twin").code == 4
    assert cli.there("jobs", "show", "twin", "--queue", "second", "--json").lines[0]["input"] == {"a": 2}


@pytest.mark.parametrize(("job_id", "code"), [("nobody", 3), ("a.b", 2), ("a*", 2), ("x" * 100, 2)])
def test_a_job_that_is_not_there_has_its_code(cli: Cli, job_id: str, code: int) -> None:
    cli.make_ledger()
    for verb in ("show", "cancel"):
        answer = cli.there("jobs", verb, job_id)
        assert (answer.code, answer.out) == (code, "")
        assert answer.err.count("\n") == 1


def test_a_waiting_job_is_cancelled_once(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "late")
    assert (
        cli.there("jobs", "cancel", "lat", "--reason", "no need", "--json").lines[0]["status"] == "cancelled"
    )
    again = cli.there("jobs", "cancel", "late")
    assert again.code == 4
    assert cli.head() == 2
    assert cli.there("jobs", "show", "late", "--json").lines[0]["cancel_reason"] == "no need"


def test_events_are_printed_as_stored(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "one")
    cli.there("enqueue", "send", "text=x", "--id", "two")
    cli.there("jobs", "cancel", "one")
    events = cli.there("events", "tail", "--json").lines
    assert [(each["stream_sequence"], each["type"], each["job"]) for each in events] == [
        (1, "queued", "one"),
        (2, "queued", "two"),
        (3, "cancelled", "one"),
    ]
    assert all(each["stored_at"].endswith("Z") for each in events)
    assert [e["job"] for e in cli.there("events", "tail", "--json", "--from", "2", "--limit", "1").lines] == [
        "two"
    ]
    assert [
        e["stream_sequence"] for e in cli.there("events", "tail", "--json", "--type", "cancelled").lines
    ] == [3]
    assert [e["job"] for e in cli.there("events", "tail", "--json", "--queue", "mail").lines] == ["two"]
    assert cli.there("events", "tail", "--json", "--from", "now").lines == []
    assert len(cli.there("events", "tail", "--json", "--from", events[1]["stored_at"]).lines) == 2
    beyond = cli.there("events", "tail", "--from", "99")
    assert (beyond.code, "beyond the ledger's end" in beyond.err) == (2, True)


def test_events_of_locks_are_printed_between_those_of_jobs(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "one")
    with sync.connect(cli.url, environment=cli.environment) as ledger, ledger.lock("account", "42") as held:
        pass
    events = cli.there("events", "tail", "--json").lines
    assert [each["type"] for each in events] == ["queued", "acquired", "released"]
    assert events[1]["holder"] == held.holder
    assert len(cli.there("events", "tail", "--json", "--type", "released").lines) == 1
    assert len(cli.there("events", "tail", "--json", "--queue", "math").lines) == 1
    shown = cli.there("events", "tail").out
    assert f"lock account/42 by {held.holder}" in shown
    assert f"lock account/42 of {held.fencing_number}" in shown
    assert cli.head() == 3
    assert [each["id"] for each in cli.there("jobs", "list", "--json").lines] == ["one"]


def test_what_a_job_carries_cannot_steer_the_terminal(cli: Cli) -> None:
    cli.there("enqueue", "send", "--input", json.dumps({"text": "\x1b[2J[bold]x\u202e"}), "--id", "evil")
    cli.there("jobs", "cancel", "evil", "--reason", "\x1b]0;title\x07[/]")
    for words in (["jobs", "show", "evil"], ["events", "tail"], ["jobs", "show", "evil", "--json"]):
        answer = cli.there(*words)
        assert answer.code == 0
        assert not {"\x1b", "\x07", "\u202e"} & set(answer.out)


def test_a_projection_is_made_followed_rebuilt_and_verified(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1")
    before = cli.there("projection", "status", "--json").lines[0]
    assert (before["exists"], before["position"], before["lag_events"]) == (False, 0, 1)
    assert (before["begins_at"], before["schema_version"], before["lag_s"] > 0) == (1, None, True)
    cli.there("jobs", "list")
    after = cli.there("projection", "status", "--json").lines[0]
    assert (after["lag_events"], after["lag_s"], after["schema_version"]) == (0, 0.0, SCHEMA_VERSION)
    assert "begins at" in cli.there("projection", "status").out
    rebuilt = cli.there("projection", "rebuild", "--json").lines[0]
    assert (rebuilt["position"], rebuilt["begins_at"]) == (1, 1)
    verified = cli.there("projection", "verify", "--json").lines[0]
    assert (verified["equal"], verified["difference"]) == (True, None)


def test_a_projection_that_differs_is_refused_with_the_first_difference(cli: Cli) -> None:
    cli.there("enqueue", "add", "a=1", "--id", "one")
    cli.there("jobs", "list")
    with contextlib.closing(sqlite3.connect(cli.projection)) as database, database:
        database.execute("UPDATE jobs SET status = 'completed'")
    answer = cli.there("projection", "verify", "--json")
    assert answer.code == 1
    assert answer.lines[0]["equal"] is False
    assert answer.lines[0]["difference"]["stream_sequence"] == 1
    assert "status of one/" in answer.err
    assert "stream sequence 1" in answer.err
    assert cli.there("projection", "rebuild", "--archive", "nowhere").code == 3


def test_a_file_that_is_no_projection_is_refused_and_left_alone(cli: Cli) -> None:
    with contextlib.closing(sqlite3.connect(cli.projection)) as database:
        database.execute("CREATE TABLE precious (value)")
    before = cli.projection.read_bytes()
    cli.make_ledger()
    for words in (["jobs", "list"], ["projection", "rebuild"]):
        answer = cli.there(*words)
        assert answer.code == 4
        assert answer.err.count("\n") == 1
    assert cli.projection.read_bytes() == before


def test_the_default_projection_is_one_file_per_ledger(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for environment in ("left", "right"):
        where = ("--url", cli.url, "--environment", f"{cli.environment}_{environment}")
        words = ("jobs", "list", *where)
        assert cli("enqueue", "add", "a=1", "--app", str(cli.app), *where).code == 0
        assert cli(*words).code == 0
        assert cli(*words).code == 0
    made = sorted(path.name for path in (tmp_path / "data" / "jobledger" / "projections").glob("*.db"))
    assert len(made) == 2
    assert "left" in made[0]


def test_no_workers_is_an_empty_list(cli: Cli) -> None:
    cli.make_ledger()
    assert cli.there("workers", "list", "--json").out == ""
    assert "no worker runs" in cli.there("workers", "list").out


def test_doctor_changes_nothing_and_says_what_to_do(
    cli: Cli, roomy_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no store lies, which `make demo` leaves in the project's own folder
    monitor = ("--monitor", roomy_server.monitor_url or "")
    found = cli.there("doctor", "--json", *monitor)
    assert found.code == 3
    checks = {each["check"]: each for each in found.lines[0]["checks"]}
    assert checks["server"]["status"] == "ok"
    assert checks["version"]["found"].startswith("nats-server 2.")
    assert checks["durability"]["found"].startswith("process")
    assert checks["ledger"]["status"] == "fail"
    assert (
        f"there is no ledger of environment '{cli.environment}' at {cli.url}: " in checks["ledger"]["found"]
    )
    ledger = f"stream {cli.environment.upper()}_LEDGER"
    assert ledger not in checks
    cli.there("enqueue", "add", "a=1")
    checks = {each["check"]: each for each in cli.there("doctor", "--json", *monitor).lines[0]["checks"]}
    assert checks[ledger]["status"] == "ok"
    assert checks["clock"]["status"] == "ok"
    assert {"workers", "projection"} <= set(checks)
    on_a_terminal(monkeypatch)
    assert max(map(len, unstyled(cli.there("doctor", *monitor).out))) <= 80


def test_doctor_does_not_believe_another_servers_page(cli: Cli) -> None:
    found = cli.there("doctor", "--json", "--monitor", "http://127.0.0.1:9")
    (durability,) = [each for each in found.lines[0]["checks"] if each["check"] == "durability"]
    assert (durability["status"], durability["found"]) == ("warn", "unknown")
    assert "http://127.0.0.1:9" in durability["advice"]


def test_a_full_ledger_refuses_and_can_still_be_read(cli: Cli) -> None:
    big = json.dumps({"text": "x" * 20_000})
    words = ("enqueue", "send", "--input", big, "--ledger-bytes-max", str(1 << 16))
    answers = [cli.there(*words) for _ in range(5)]
    assert [answer.code for answer in answers] == [0, 0, 0, 4, 4]
    assert "the ledger takes no new jobs now" in answers[-1].err
    assert cli.head() == 3
    assert len(cli.there("events", "tail", "--json").lines) == 3
    assert cli.there("ledger", "resize", "1MiB").code == 0
    assert cli.there("enqueue", "add", "a=1").code == 0


@pytest.mark.parametrize("words", [["jobs", "show", "x"], ["workers", "list"]])
def test_without_a_server_the_code_is_5(cli: Cli, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBLEDGER_URL", "nats://u:secret@127.0.0.1:1")
    answer = cli(*words)
    assert (answer.code, answer.out) == (5, "")
    assert "127.0.0.1:1" in answer.err
    assert "secret" not in answer.err
    assert answer.err.count("\n") == 1


def test_doctor_without_a_server_fails_with_the_reason(cli: Cli) -> None:
    answer = cli("doctor", "--json", "--url", "nats://127.0.0.1:1")
    assert answer.code == 5
    assert answer.lines[0]["checks"][0]["status"] == "fail"

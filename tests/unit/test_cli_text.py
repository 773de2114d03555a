"""What comes from a job can neither steer a terminal nor hide on it."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from rich.text import Text
from tests.support.stories import Story
from tests.support.tables import each_row
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.admin.amounts import attempts_words, duration, read_size, size
from jobledger.cli.events.lines import event_line, show_event
from jobledger.cli.jobs.view import show_attempts, show_events
from jobledger.cli.logs import log_as_process, set_up_logs
from jobledger.cli.output import Output
from jobledger.cli.text import age, json_safe, moment, plain, plain_lines, shortened
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent, encode
from jobledger.ledger.model.events import ErrorInfo, Failed, Queued, Started

NOW = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)


@each_row(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("grüße 東京 🙂", "grüße 東京 🙂"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("half \ud800", "half \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize("text", ['{"a":"x"}', '{"a":"\u202e\x7f\x9b\U000e0041 grüße"}'])
def test_safe_json_has_the_same_value_and_no_unsafe_character(text: str) -> None:
    safe = json_safe(text)
    assert json.loads(safe) == json.loads(text)
    assert plain(safe) == safe


def test_lines_of_a_traceback_stay_lines() -> None:
    assert plain_lines("a\n\tb\x1b\r\nc") == ["a", "        b\\x1b", "c"]


def test_a_long_text_is_cut_to_the_length_asked_for() -> None:
    assert shortened("x" * 100, 10) == "xxxxxxxxx…"
    assert shortened("\x1b" * 3, 12) == "\\x1b\\x1b\\x1b"


@each_row(
    ("seconds", "shown"),
    [(0.0123, "12 ms"), (3.44, "3.4 s"), (59.4, "59 s"), (300, "5 min"), (7300, "2 h"), (259_200, "3 d")],
)
def test_durations_have_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_ages_look_both_ways() -> None:
    assert age(NOW - timedelta(minutes=3), NOW) == "3 min ago"
    assert age(NOW + timedelta(seconds=5), NOW) == "in 5.0 s"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8.0 GiB")]
)
def test_sizes_have_the_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown


def test_a_table_cuts_only_what_may_be_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    id_, queue = "0197" * 9, "a-very-long-queue-name-that-somebody-chose"
    Output().table(
        ("id!", "queue", "task", "status!", "age>"), [(id_, queue, "send", "dead lettered", "3 min")]
    )
    head, _, row = unstyled(capsys.readouterr().out)
    assert head.split() == ["id", "queue", "task", "status", "age"]
    assert row.split() == [id_, "a-very-lo…", "send", "dead", "lettered", "3", "min"]
    assert len(row) == 80


def test_a_column_is_folded_and_no_line_ends_in_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "types cancelled, completed, dead_lettered, discarded; queue billing; task charge_the_card"
    rows = [("billing", words, 3), ("audit", "all", 12_000)]
    columns = ("name", "events~", "lag>")
    on_a_terminal(monkeypatch, 40)
    Output().table(columns, rows)
    folded = unstyled(capsys.readouterr().out)
    assert all(line == line.rstrip() and len(line) <= 40 for line in folded), folded
    assert " ".join(" ".join(line[10:31].split()) for line in folded[2:-1]) == words
    monkeypatch.delenv("TTY_COMPATIBLE")
    Output().table(columns, rows)
    head, rule, first, second = unstyled(capsys.readouterr().out)
    assert (len(head), len(rule), len(first), len(second)) == (len(first),) * 4
    assert f"billing   {words}        3" in first


def test_long_lines_are_folded_on_a_terminal_alone_and_commands_never(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "`jobledger jobs show slow-1`"
    text = f"job slow-1 runs on web1-4242-1b0f3c5e, which was asked to end it: {command} says more"
    output = Output()
    output.say(text)
    output.hanging(Text("status  "), Text(text))
    output.facts([("why", text)])
    assert unstyled(capsys.readouterr().out) == [text, f"status  {text}", f"why  {text}"]
    on_a_terminal(monkeypatch)
    for width in (30, 70, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        output = Output()
        output.say(text)
        output.hanging(Text("status  "), Text(text))
        output.say(f"  at 5 {text}")
        output.say(f"    {'^' * 90}")
        shown = unstyled(capsys.readouterr().out)
        assert sum(command in line for line in shown) == 3, shown
        assert all(line == line.rstrip() for line in shown)
        assert all(len(line) <= max(width, 8 + len(command)) for line in shown[:-1])
        assert all(line.startswith("  ") for line in shown[-3:])
        assert shown[-1] == f"    {'^' * 90}"


def test_an_event_of_a_job_is_folded_below_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "the mail server is restarting, so try again"
    error = ErrorInfo(kind="exception", type="ConnectionError", message=message)
    event = Failed(job="a", queue="email", task="send", at=NOW, by="w", attempt=1, error=error)
    stored = StoredEvent(event=event, data=encode(event), stream_sequence=8, stored_at=NOW)
    quiet = Queued(job="a", queue="email", task="send", at=NOW, by="w", max_attempts=1)
    on_a_terminal(monkeypatch)
    for each in (stored, StoredEvent(event=quiet, data=encode(quiet), stream_sequence=9, stored_at=NOW)):
        show_event(Output(), each)
    first, second, last = unstyled(capsys.readouterr().out)
    assert first.endswith(" attempt 1: ConnectionError: the mail server")
    assert (second.strip(), second.index("is")) == ("is restarting, so try again", first.index("attempt"))
    assert last.endswith("queued")
    monkeypatch.delenv("TTY_COMPATIBLE")
    show_event(Output(), stored)
    assert unstyled(capsys.readouterr().out)[0].endswith(f"attempt 1: {error.type}: {error.message}")


def test_on_a_narrow_terminal_an_event_still_says_what_happened() -> None:
    job = "019aa1c6-62ef-7a43-9d0c-5b16a8f0f7a5"
    event = Started(
        job=job, queue="email", task="send", at=NOW, by="w", attempt=2, worker="web1-42", lease_s=15.0
    )
    stored = StoredEvent(event=event, data=encode(event), stream_sequence=7, stored_at=NOW)
    narrow = event_line(stored, narrow=True).plain
    assert narrow.split()[-6:] == ["019aa1c6-62ef-7a43", "send", "attempt", "2", "on", "web1-42"]
    assert f" {job} email/send " in event_line(stored).plain


def test_what_a_task_logs_names_its_job(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"job": "report-1", "attempt": 2}
    for verbose, line in (
        (False, r"INFO: half-way \(job report-1, attempt 2\)"),
        (True, r"\d{4}-\d\d-\d\dT[\d:.]{12}Z INFO job=report-1 attempt=2 jobledger\.task: half-way"),
    ):
        set_up_logs(verbose=verbose, debug=False)
        logging.getLogger("jobledger.task").info("half-way", extra=said)
        assert re.fullmatch(f"{line}\n", capsys.readouterr().err)
    set_up_logs(verbose=False, debug=False)


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_lines_on_a_terminal_are_short_and_what_is_bad_is_in_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    screen = _Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("NO_COLOR", no_color)
    set_up_logs(verbose=False, debug=False)
    log_as_process()
    logging.getLogger("jobledger.workers").info("worker a takes mail")
    said = {"job": "welcome-7", "queue": "mail", "task": "send", "attempt": 2}
    logging.getLogger("jobledger.workers.jobs").warning("it died of \x1b[1mbold", extra=said)
    took, died = screen.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d worker a takes mail", took)
    begin, end = ("", "") if no_color else ("\x1b[33m", "\x1b[0m")
    line = r"\d\d:\d\d:\d\d WARNING job welcome-7: it died of \\x1b\[1mbold"
    assert re.fullmatch(re.escape(begin) + line + re.escape(end), died)
    set_up_logs(verbose=True, debug=False)
    log_as_process()
    logging.getLogger("jobledger.workers").info("worker b takes mail")
    assert screen.getvalue().endswith("Z INFO jobledger.workers: worker b takes mail\n")
    set_up_logs(verbose=False, debug=False)


def test_a_line_of_json_holds_whatever_was_logged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(verbose=False, debug=False, log_format="json")
    said = {"job": "report-1", "attempt": 2, "trace_id": object()}
    error = ValueError("odd \x1b[31m")
    logging.getLogger("myapp").error("over\nand \u202e out", extra=said, exc_info=error)
    logging.getLogger("myapp").info("not asked for")
    text = capsys.readouterr().err
    line = json.loads(text)
    assert text.isascii()
    assert text.count("\n") == 1
    assert (line["level"], line["logger"], line["message"]) == ("error", "myapp", "over\nand \u202e out")
    assert (line["job"], line["attempt"], line["trace_id"][:7]) == ("report-1", 2, "<object")
    assert "ValueError: odd" in line["exception"]
    set_up_logs(verbose=False, debug=False)


def test_a_screen_has_one_format_of_times_and_the_date_above_another_day(
    capsys: pytest.CaptureFixture[str],
) -> None:
    story = Story()
    story.enqueue("j-1")
    story.now += timedelta(days=1)
    story.run("j-1")
    history = [each for each in story.messages if isinstance(each, StoredEvent)]
    job = fold(history).job
    assert job is not None
    output = Output()
    output.facts([("created", moment(job.created_at, story.now))])
    show_attempts(output, job)
    show_events(output, history)
    shown = capsys.readouterr().out
    times = re.findall(r"\d\d:\d\d:\d\d(\S*)", shown)
    assert len(times) == len(history) + 2
    assert [re.fullmatch(r"\.\d{3}Z?", rest) is not None for rest in times] == [True] * len(times), shown
    days = [line for line in shown.splitlines() if re.fullmatch(r"\d{4}-\d\d-\d\d", line)]
    assert days == [f"{story.now:%Y-%m-%d}"]


def test_attempts_that_were_given_back_raise_no_limit() -> None:
    story = Story()
    story.enqueue("j-1")
    story.run("j-1")
    job = fold([each for each in story.messages if isinstance(each, StoredEvent)]).job
    assert job is not None
    paused = msgspec.structs.replace(job, attempts_dropped=1, attempts_given_back=1)
    assert attempts_words(job) == f"1 of {job.order.max_attempts}"
    assert attempts_words(paused) == f"1 of {job.order.max_attempts}, 1 more given back"


@each_row(
    ("text", "count"),
    [
        ("65536", 65_536),
        ("8GiB", 8 << 30),
        ("1.5 MiB", 3 << 19),
        (" 500mib ", 500 << 20),
        ("2TiB", 2 << 40),
        ("", None),
        ("8GB", None),
        ("-1", None),
        ("1e9", None),
        ("much", None),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str, count: int | None) -> None:
    assert read_size(text) == count

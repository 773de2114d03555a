"""Every error becomes one sentence and the exit code that scripts rely on."""

from __future__ import annotations

import json

import pytest
from tests.support.tables import each_row

from jobledger.cli.errors import UsageError, exit_code, first_of, report, sentence
from jobledger.cli.main import run
from jobledger.ledger.model import errors
from jobledger.projections import PositionMismatchError, ProjectionError, ProjectionMissingError


@each_row(
    ("kind", "code"),
    [
        (errors.InvalidError, 2),
        (errors.UnknownTaskError, 2),
        (errors.NotFoundError, 3),
        (errors.RefusedError, 4),
        (errors.LedgerFullError, 4),
        (errors.UnreachableError, 5),
        (errors.CorruptLedgerError, 1),
        (errors.OutcomeError, 1),
        (ProjectionError, 1),
        (ProjectionMissingError, 3),
        (PositionMismatchError, 4),
        (UsageError, 2),
        (ValueError, 1),
    ],
)
def test_the_branch_of_an_error_is_its_exit_code(kind: type[Exception], code: int) -> None:
    assert exit_code(kind.__new__(kind)) == code


def test_in_a_group_our_own_error_speaks() -> None:
    ours = errors.LedgerFullError("full")
    group = BaseExceptionGroup("", [ValueError("x"), ExceptionGroup("", [OSError(2, "gone"), ours])])
    assert first_of(group) is ours


def test_an_error_without_a_sentence_of_its_own_gets_one() -> None:
    assert (
        sentence(PermissionError(13, "Permission denied", "/x")) == "the system refused /x: Permission denied"
    )
    assert "unexpected ZeroDivisionError" in sentence(ZeroDivisionError("division by zero"))


def test_a_command_is_told_the_option_that_the_ledgers_sentence_cannot_name() -> None:
    assert sentence(errors.AmbiguousIdError("a", ["x/a", "y/a"])).endswith("or the queue as well (--queue)")
    assert sentence(errors.UnknownTaskError("send", [])).endswith("load the module that defines it (--app)")


def test_an_error_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(errors.LedgerError("two\nlines \x1b[31m"), as_json=False) == 1
    assert capsys.readouterr().err == "jobledger: two lines \\x1b[31m\n"


def test_with_json_an_error_is_an_object_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "list", "--limit", "0", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    body = json.loads(shown.err)["error"]
    assert body["code"] == 2
    assert "--limit" in body["message"]


@each_row(
    ("words", "said"),
    [
        (["bogus"], "bogus"),
        (["enqueue"], "TASK"),
        (["events", "tail", "--from", "yesterday"], "--from 'yesterday'"),
        (["events", "tail", "--type", "vanished"], "no event type 'vanished'"),
        (["jobs", "run", "j1"], "--app"),
        (["enqueue", "add", "--app", "no_such_module"], "no module 'no_such_module'"),
        (["server", "--port", "70000"], "--port"),
        (["worker", "--app", "jobledger.cli.demo.tasks", "--concurrency", "0"], "concurrency"),
        (["worker", "--app", "jobledger.cli.demo.tasks", "--queue", "a.b"], "queue 'a.b'"),
        (["jobs", "list", "--since", "soon"], "--since 'soon'"),
        (["jobs", "list", "--state", "sleeping"], "--state"),
        (["doctor", "--environment", "a b"], "environment 'a b'"),
    ],
)
def test_a_wrong_request_is_refused_with_a_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBLEDGER_APP", raising=False)
    assert run(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.startswith("jobledger: ")
    assert shown.err.count("\n") == 1


def test_switches_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "list", "--limit", "0", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_the_version_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("jobledger ")


def test_a_wrong_choice_is_told_in_our_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "list", "--state", "done"]) == 2
    assert "'--state': 'done' is not one of 'scheduled', " in capsys.readouterr().err

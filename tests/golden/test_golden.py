"""What users of the command line, of the HTTP API and of the dashboard's forms rely on is as it was recorded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.golden.answers import answers
from tests.golden.conftest import Recorded
from tests.golden.form_fields import form_fields
from tests.golden.help_texts import help_texts
from tests.golden.questions import LEFT_OUT, QUESTIONS
from tests.golden.record import FOLDER, VARIABLE, as_text, compare, difference
from tests.support.command_line import CommandLine

from jobledger.cli.commands import COMMANDS, Group, named_by
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.openapi import openapi


def test_the_help_is_as_recorded() -> None:
    texts = help_texts()
    compare({f"help/{group}.txt": text for group, text in texts.items()})
    assert {path.stem for path in (FOLDER / "help").iterdir()} == set(texts), "of a group that is gone"


def test_the_document_of_the_http_api_is_as_recorded() -> None:
    compare({"openapi.json": as_text(openapi(ENDPOINTS))})


def test_the_forms_of_the_dashboard_are_as_recorded(recorded: Recorded) -> None:
    compare({"forms.json": as_text(recorded.portal.call(form_fields, recorded.http))})


def test_the_answers_of_commands_and_of_the_api_are_as_recorded(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("JOBLEDGER_") and name != VARIABLE]:
        monkeypatch.delenv(name)
    compare({"answers.json": as_text(answers(recorded, CommandLine(recorded.url, capsys), tmp_path))})


def test_every_command_is_asked_or_left_out_with_a_reason() -> None:
    asked = {" ".join(named_by(shlex.split(each.words))) for each in QUESTIONS}
    assert asked.isdisjoint(LEFT_OUT)
    assert asked | LEFT_OUT.keys() == set(_commands(COMMANDS, ()))


def _commands(group: Group, path: tuple[str, ...]) -> Iterator[str]:
    for name, member in group.members.items():
        if isinstance(member, Group):
            yield from _commands(member, (*path, name))
        else:
            yield " ".join((*path, name))


def test_a_long_difference_is_cut_and_says_how_to_accept_it() -> None:
    now = "\n".join(str(number) for number in range(500))
    told = difference({"x": "", "y": "same"}, {"x": now, "y": "same"}).splitlines()
    assert (len(told), told[3], told[-2]) == (62, "+0", "... and 443 more lines")
    assert told[-1].startswith("If x in tests/golden shall change like this, run `make golden`")

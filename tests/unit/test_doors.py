"""Every verb has every door: a command, an endpoint, perhaps a form, and a request that clients send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules
from typing import Annotated, Any, Final, Literal

import msgspec
import pytest
from tests.support.program import PROGRAM
from tests.support.verbs import EXAMPLES

from jobledger.admin import verbs
from jobledger.admin.verbs.kit import (
    Declaration,
    Facts,
    Heading,
    Note,
    ReasonBeside,
    Table,
    Verb,
    answer_type,
    declared_in,
    fields_of,
    option,
    read_words,
    request_of,
    verb,
    words_in,
)
from jobledger.cli.commands import COMMANDS, VERBS, Group
from jobledger.cli.output import Output
from jobledger.cli.verbs import tell
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.api.verbs import endpoint_of
from jobledger.gateway.pages.html import TEMPLATES
from jobledger.gateway.pages.table import FORMS
from jobledger.ledger.model.errors import InvalidInputError

#: What forms send beside the fields of their verb.
_OF_FORMS: Final = {"token", "reason"}


class Choose(Verb[str], frozen=True, kw_only=True):
    """Choose colours."""

    colours: Annotated[tuple[Literal["red", "blue"], ...], option("Which.", "WORD", flag="--colour")] = ()


def modules() -> Iterator[str]:
    yield from (each.name for each in iter_modules(verbs.__path__) if each.name != "kit")


def declared() -> list[tuple[str, Declaration]]:
    return [
        (name, each) for name in modules() for each in declared_in(import_module(f"{verbs.__name__}.{name}"))
    ]


def test_each_verb_is_a_command_with_its_fields_as_options() -> None:
    for module, each in declared():
        group = COMMANDS.members[each.group]
        if each.group == each.command:  # it is in no group
            assert each.has_own_command, each.command
            continue
        assert isinstance(group, Group), each.command
        if each.has_own_command:
            assert each.name in group.members, each.command
            continue
        assert group.members[each.name] == f"{VERBS}{module}", each.command
        command: Any = PROGRAM
        for word in each.command.split():
            command = command.commands[word]
        found = {
            name
            for parameter in command.params
            for name in (parameter.opts if parameter.param_type_name == "option" else [parameter.metavar])
        }
        fields = fields_of(each.verb)
        names = [(one.metavar,) if one.is_argument_of(each) else one.flags for one in fields]
        assert set(chain.from_iterable(names)) <= found, each.command
        assert ("--ledger-bytes-max" in found) == each.creates, each.command
        assert (command.help or "").split() == (each.verb.__doc__ or "").split(), each.command


def test_no_command_of_a_verb_is_without_one() -> None:
    names = {each.command for _, each in declared() if not each.has_own_command}
    listed = {
        f"{group} {name}"
        for group, members in COMMANDS.members.items()
        if isinstance(members, Group)
        for name, module in members.members.items()
        if isinstance(module, str) and module.startswith(VERBS)
    }
    assert listed == names


def test_each_verb_is_an_endpoint_with_its_permission_and_answer() -> None:
    endpoints = {(each.method, each.path): each for each in ENDPOINTS}
    for _, each in declared():
        found = endpoints[each.method, each.path]
        assert (found.permission, found.returns) == (each.permission, answer_type(each.verb)), each.command
        fields = {field.wire for field in fields_of(each.verb)}
        taken = {
            field.encode_name
            for part in (found.query, found.body)
            if part is not None
            for field in msgspec.structs.fields(part)
        }
        whole = {field.wire: field.kind for field in fields_of(each.verb) if field.is_body}
        if whole:
            assert [found.body] == list(whole.values()), each.command
            taken = fields - set(words_in(each.path))
        assert taken | set(words_in(each.path)) == fields, each.command


def test_each_field_of_a_verb_says_what_it_means() -> None:
    for _, each in declared():
        for field in fields_of(each.verb):
            assert field.help.endswith((".", ")")), f"{each.command}: {field.name}"


def test_each_form_of_a_verb_sends_nothing_but_its_fields() -> None:
    forms = {each.path: each for each in FORMS}
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.html")))
    for _, each in declared():
        if not each.form:
            continue
        assert forms[each.form].permission == each.permission, each.command
        if each.form.startswith(
            "/jobs/"
        ):  # one piece of a template shows them all; the browser's tests press each
            assert 'part.act(here_ ~ "/" ~ verb' in pages
            continue
        noun, verb_of_form = re.escape(each.form.partition("{")[0]), re.escape(each.form.rpartition("/")[2])
        shown = re.findall(
            rf'(?:act\("{noun}"[^%]*?/{verb_of_form}"|act\("{re.escape(each.form)}"|action="{{{{ address\("{re.escape(each.form)}"\) }}}}")(.*?)(?:{{% endcall %}}|</form>)',
            pages,
            re.DOTALL,
        )
        assert shown, f"no page has the form of {each.command}"
        sent = {name for text in shown for name in re.findall(r'name="(\w+)"', text)}
        assert sent <= {field.wire for field in fields_of(each.verb)} | _OF_FORMS, each.command


def test_a_verb_is_the_request_that_its_endpoint_takes() -> None:
    for _, each in declared():
        asked = request_of(EXAMPLES[each.verb]("a"))
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(each.path))
        assert re.fullmatch(pattern, asked.path), each.command
        assert asked.method == each.method, each.command


def test_a_terminal_is_told_sentences_tables_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    past = now - timedelta(minutes=3)
    for told in (
        Heading("watch deep"),
        Facts([("status", "quiet"), ("since", past), ("reason", None)]),
        Table(("watch", "since!"), [("deep", past), ("of a clock ahead", now + timedelta(seconds=1))]),
        Note("by the way"),
        "nothing was changed",
    ):
        tell(Output(as_json=False), told, now)
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines() if not line.startswith("─")] == [
        ["watch", "deep"],
        ["status", "quiet"],
        ["since", "2026-01-02", "03:01:05.000Z", "(3", "min", "ago)"],
        ["watch", "since"],
        ["deep", "3", "min", "ago"],
        ["of", "a", "clock", "ahead", "0", "ms", "ago"],
        ["nothing", "was", "changed"],
    ]
    assert shown.err == "by the way\n"


class Made(msgspec.Struct):
    """An answer."""

    job: str


@verb("a make", "POST /v1/a/{name}", permission="manage", summary="Make it", then="/jobs/{job}?of={name}")
class Make(Verb[Made], frozen=True, kw_only=True):
    """A wish with a form that leads to a page of its answer."""

    name: str


def test_a_form_leads_to_an_address_with_what_was_wished_and_answered() -> None:
    assert Make(name="a&b").page_after(Made(job="é 1")) == "/jobs/%C3%A9%201?of=a%26b"


def test_each_word_of_a_list_is_read_as_one_alone_is() -> None:
    (field,) = fields_of(Choose)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert read_words(field, ["red", "blue", "red"], "--colour", now) == ("blue", "red")
    assert read_words(field, ["none"], "--colour", now) == ()
    with pytest.raises(InvalidInputError, match="--colour must be red or blue, got 'green'"):
        read_words(field, ["red", "green"], "--colour", now)


class Between(Verb[None], frozen=True, kw_only=True):
    """A wish with two times."""

    since: Annotated[datetime, option("Since when.", past=True)]
    until: Annotated[datetime, option("Until when.")]


def test_a_span_lies_ahead_or_behind_as_its_field_says() -> None:
    now = datetime(2026, 1, 2, 12, tzinfo=UTC)
    since, until = fields_of(Between)
    for text, before, after in (("2h", -2, 2), ("11:00", -1, 23), ("2h ago", -2, -2), ("now", 0, 0)):
        hours = [
            (read_words(each, [text], each.flag, now) - now) / timedelta(hours=1) for each in (since, until)
        ]
        assert hours == [before, after], text


class Letter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a body."""

    to: str


@verb("a send", "PUT /v1/a/{name}", permission="manage", summary="Send it")
class Send(Verb[None], frozen=True, kw_only=True):
    """A wish whose body is one thing."""

    name: str
    letter: Annotated[Letter, option("The letter.", file="--file", is_body=True)]
    reason: ReasonBeside = ""


@verb("a carry", "POST /v1/a", permission="manage", summary="Carry it")
class Carry(Verb[None], frozen=True, kw_only=True):
    """A wish with values of all kinds that files and JSON give."""

    data: Annotated[Any, option("Any JSON.", file="--body")] = None
    picture: Annotated[bytes | None, option("A picture.", file="--picture")] = None
    marks: Annotated[dict[str, str], option("A mark.", flag="--mark")] = msgspec.field(
        default_factory=dict[str, str]
    )


def test_a_body_may_be_one_field_as_a_whole() -> None:
    asked = request_of(Send(name="a", letter=Letter(to="ann"), reason="why"))
    assert (asked.params, asked.body) == ({"reason": "why"}, {"to": "ann"})
    made = endpoint_of(Send.declaration)
    assert made.body is Letter
    assert made.query is not None
    assert made.query.__struct_fields__ == ("reason",)


def test_an_option_stands_once_in_a_command() -> None:
    for _, each in declared():
        command = PROGRAM
        for word in each.command.split():
            command = command.commands[word]
        names = [name for parameter in command.params for name in parameter.opts]
        assert len(names) == len(set(names)), each.command


def test_structures_and_bytes_are_given_as_files_and_json_as_text_too() -> None:
    data, picture, marks = fields_of(Carry)
    assert [each.flags for each in (data, picture, marks, fields_of(Send)[1])] == [
        ("--data", "--body"),
        ("--picture",),
        ("--mark",),
        ("--file",),
    ]
    assert marks.is_pairs
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert read_words(data, ['{"to": ["ann"]}'], "--data", now) == {"to": ["ann"]}
    with pytest.raises(InvalidInputError, match="JSON of --data is not valid JSON"):
        read_words(data, ["{"], "--data", now)
    assert request_of(Carry(picture=b"abc", marks={"a": "b"})).body == {
        "picture": "YWJj",
        "marks": {"a": "b"},
    }

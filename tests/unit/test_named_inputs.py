"""Inputs checked by an announced schema: as the task's own code checks them, wherever the schema can say it."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel
from tests.support.tables import each_row

from jobledger.ledger import InvalidInputError, TaskNotFoundError, task
from jobledger.ledger.additions.announced import AnnouncedInput
from jobledger.ledger.additions.schemas import ANY_INPUT, type_of_input
from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    PermissionRefusedError,
    ServerUnreachableError,
)
from jobledger.ledger.named.book import AnnouncedTasks
from jobledger.ledger.nats.task_book import TaskEntry
from jobledger.ledger.options import Options
from jobledger.ledger.signature import TaskSignature


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(msgspec.Struct):
    street: str
    number: int = 1


class Card(msgspec.Struct, tag=True):
    digits: str


class Cash(msgspec.Struct, tag=True):
    cents: int


class Node(msgspec.Struct):
    name: str
    below: list[Node] = []


class Person(BaseModel):
    name: str
    age: int


#: The type of an argument, and texts that are tried as its value.
VALUES: list[tuple[Any, list[str]]] = [
    (int, ["7", "1.5", '"7"', "true", "null", "[]", "123456789012345678901234567890"]),
    (str, ['""', '"x"', "7", "null"]),
    (float, ["7", "1.5", '"1"']),
    (bool, ["true", "1", '"true"']),
    (int | None, ["7", "null", '"x"']),
    (int | str, ["7", '"x"', "null", "[]"]),
    (list[int], ["[]", "[1]", '["x"]', "{}", "null"]),
    (dict[str, int], ["{}", '{"a":1}', '{"a":"x"}', "[]"]),
    (tuple[int, str], ['[1,"x"]', "[1]", '["x",1]', '[1,"x",2]']),
    (set[int], ["[1,2]", '["x"]']),
    (Literal["x", "y"], ['"x"', '"z"', "1"]),
    (Literal[1, 2], ["1", "3"]),
    (Color, ['"red"', '"green"']),
    (Annotated[int, msgspec.Meta(ge=1, le=5)], ["1", "5", "0", "6"]),
    (Annotated[str, msgspec.Meta(min_length=2, max_length=3, pattern="^a")], ['"ab"', '"a"', '"abcd"', '"bb"']),
    (dt.date, ['"2026-01-31"', '"31.1.2026"']),
    (uuid.UUID, ['"0197a3f2-7c1e-7d30-9a54-3f1b2c4d5e6f"', '"x"']),
    (decimal.Decimal, ['"1.50"', '"x"']),
    (bytes, ['"YQ=="', '"*"']),
    (Address, ['{"street":"x"}', '{"street":1}', "{}", '{"street":"x","more":1}', '{"street":"x","number":"1"}']),
    (list[Address], ['[{"street":"x"}]', "[{}]"]),
    (Person, ['{"name":"x","age":1}', '{"name":"x"}', "[]"]),
    (Path, ['"/tmp"', "7"]),
    (Any, ["7", "[{}]", "null"]),
]  # fmt: skip


def announced(of: Callable[..., Any]) -> tuple[TaskSignature, AnnouncedInput]:
    """Return the input of a task by its code, and by what is left of that once it was stored."""
    signature = task(of).signature
    stored = msgspec.json.decode(msgspec.json.encode(signature.json_schema()))
    return signature, AnnouncedInput("t", stored)


def accepts(reads: TaskSignature | AnnouncedInput, text: str) -> bool:
    try:
        reads.decode(text.encode())
    except InvalidInputError:
        return False
    return True


def taking(kind: Any) -> Callable[..., None]:
    def t(value: Any) -> None: ...

    t.__annotations__["value"] = kind
    return t


@each_row(("kind", "texts"), VALUES, ids=str)
def test_the_announced_input_takes_what_the_code_takes(kind: Any, texts: list[str]) -> None:
    code, schema = announced(taking(kind))
    inputs = ['{"value":' + text + "}" for text in texts]
    assert {each: accepts(schema, each) for each in inputs} == {each: accepts(code, each) for each in inputs}
    for wrong in ("{}", '{"value":1,"other":2}', "[]", "7", "{", ""):
        assert not accepts(schema, wrong), wrong


def test_what_a_schema_cannot_say_is_left_to_the_code() -> None:
    _, payment = announced(taking(Card | Cash))
    assert accepts(payment, '{"value":{"type":"Wire"}}')
    _, tree = announced(taking(Node))
    assert accepts(tree, '{"value":{"name":"a","below":[{"name":7}]}}')
    assert not accepts(tree, '{"value":{"name":7}}')


def test_arguments_may_have_any_name_and_defaults_are_filled_in() -> None:
    def t(f1: int, f0: str = "d", later: list[int] = [3], at: dt.date = dt.date(2026, 1, 31)) -> None: ...  # noqa: B006

    code, schema = announced(t)
    assert schema.names == code.names == ("f1", "f0", "later", "at")
    assert schema.decode(b'{"f1":1}') == {"f1": 1, "f0": "d", "later": [3], "at": "2026-01-31"}
    assert schema.parse_words({"f1": "7", "f0": "7", "later": "[1]"}) == {"f1": 7, "f0": "7", "later": [1]}
    with pytest.raises(
        InvalidInputError, match="task t has no argument 'x'; its arguments: f1, f0, later, at"
    ):
        schema.parse_words({"x": "1"})
    nothing = announced(taking_nothing)[1]
    assert (nothing.names, nothing.decode(b"{}")) == ((), {})
    with pytest.raises(InvalidInputError, match="x"):
        nothing.parse_words({"x": "1"})


def taking_nothing() -> None: ...


def test_only_json_that_every_reader_can_hold_is_taken() -> None:
    _, schema = announced(taking(Any))
    raw = b' { "value" : 1 } '
    assert schema.text(msgspec.Raw(raw)) == schema.text(raw) == raw
    assert schema.text({"value": 1}) == b'{"value":1}'
    for wrong in (
        b'{"value":NaN}',
        b'{"value":"\\ud800"}',
        b'{"value":' + b"[" * 200 + b"]" * 200 + b"}",
        b"\xff",
    ):
        with pytest.raises(InvalidInputError, match="input of task t"):
            schema.text(wrong)
    with pytest.raises(InvalidInputError, match="nan"):
        schema.text({"value": float("nan")})


ODD: list[Any] = [
    True, None, 7, [], {}, {"$ref": "elsewhere"}, {"$ref": "#/$defs/x"}, {"$ref": 7}, {"type": "object", "properties": 7},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": 7}, {"type": "array"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"enum": []}, {"anyOf": []}, {"type": "nothing"},
]  # fmt: skip


@each_row("schema", ODD)
def test_a_schema_that_says_nothing_usable_lets_every_object_through(schema: Any) -> None:
    assert type_of_input(schema) is ANY_INPUT
    reads = AnnouncedInput("t", schema)
    assert accepts(reads, '{"any":[1]}')
    assert not accepts(reads, "[1]")
    assert reads.parse_words({"a": "1", "b": "x"}) == {"a": 1, "b": "x"}


def test_a_part_that_says_nothing_usable_lets_every_value_through() -> None:
    properties: dict[str, Any] = {
        "a": {"type": "string", "pattern": "("},
        "b": {"allOf": [{"type": "string"}]},
        "c": {"type": ["string", "null"]},
        "d": {"oneOf": [{"type": "object"}, {"type": "object", "properties": {}}]},
        "class": {"const": "x"},
    }
    reads = AnnouncedInput("t", {"type": "object", "properties": properties, "required": ["class"]})
    assert accepts(reads, '{"a":"(","b":1,"c":null,"d":7,"class":"x","more":1}')
    assert not accepts(reads, '{"a":1,"class":"x"}')
    assert not accepts(reads, '{"c":1,"class":"x"}')
    assert not accepts(reads, '{"class":"y"}')


class Still:
    """A clock that a test sets."""

    seconds = 0.0

    def now(self) -> dt.datetime:
        return dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.anyio
async def test_a_task_that_was_found_is_taken_for_what_it_was_while_the_bucket_of_tasks_is_away() -> None:
    clock, away = Still(), list[Exception]()
    entry = TaskEntry(name="t", queue="q", text="", input=True, worker="w", announced_at=clock.now())

    async def find(_name: str) -> TaskEntry | None:
        if away:
            raise away[0]
        return entry

    async def names() -> list[str]:
        return ["t"]

    book = AnnouncedTasks(find, names, clock)
    found = await book.get("t")
    for error in (ServerUnreachableError("no leader"), JetStreamDisabledError("10008")):
        away[:] = [error]
        clock.seconds += 3600.0
        assert await book.get("t") is found
        with pytest.raises(type(error)):
            await book.get("another")
    away[:] = [PermissionRefusedError("publish", "tasks")]
    clock.seconds += 3600.0
    with pytest.raises(PermissionRefusedError):
        await book.get("t")


@pytest.mark.anyio
async def test_what_was_announced_is_asked_for_again_after_a_moment_and_read_again_where_it_differs() -> None:
    clock, asked = Still(), list[str]()
    entry = TaskEntry(name="t", queue="old", text="", input=True, worker="w", announced_at=clock.now())

    async def find(name: str) -> TaskEntry | None:
        asked.append(name)
        return entry if name == "t" else None

    async def names() -> list[str]:
        return ["t", "total"]

    book = AnnouncedTasks(find, names, clock)
    first = (await asyncio.gather(*(book.get("t") for _ in range(5))))[0]
    assert (first.defaults.queue, asked) == ("old", ["t"])  # of a worker that did not say more
    clock.seconds = 2.5
    entry = msgspec.structs.replace(entry, worker="w2")
    assert await book.get("t") is first
    clock.seconds = 5.0
    for newer in (
        b'{"options":{"priority":"urgent"}}',
        b'{"options":{"max_attempts":0}}',
        b'{"other":1}',
        b"[]",
    ):
        entry = msgspec.structs.replace(entry, queue="new", enqueued=msgspec.Raw(newer))
        clock.seconds += 3.0
        assert (await book.get("t")).defaults == Options(queue="new"), newer
    with pytest.raises(TaskNotFoundError) as caught:
        await book.get("totla")
    assert (caught.value.task, caught.value.near) == ("totla", ["total"])
    assert not (await book.get("totla", unknown_ok=True)).is_known

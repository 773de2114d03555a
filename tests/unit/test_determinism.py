"""What `@workflow` warns of: calls between steps whose result may differ in the next attempt."""

# The samples do what no code should, in names that no code should have.
# ruff: noqa: A002, ASYNC210, ASYNC221, ASYNC230, ASYNC251, DTZ001, DTZ003, DTZ011, PLC0415, PLW1510, PTH118, PTH123

from __future__ import annotations

import datetime as dt
import os
import random
import time
import uuid
import warnings
from datetime import date, datetime
from os import environ, getenv
from pathlib import Path
from random import random as chance
from subprocess import run as call
from time import time as seconds
from typing import Any

import pytest

from jobledger.ledger import NondeterminismWarning, Run, step, workflow

_HERE = Path(__file__)


async def clocks(run: Run) -> None:
    dt.datetime.now(dt.UTC)
    datetime.now(dt.UTC)
    datetime.utcnow()  # pyright: ignore[reportDeprecated]
    date.today()
    seconds()
    time.monotonic()
    time.sleep(1)


async def chances(run: Run) -> None:
    random.random()
    chance()
    random.Random(7).random()
    random.Random()
    uuid.uuid4()
    uuid.uuid5(uuid.NAMESPACE_DNS, "a")


async def surroundings(run: Run, path: str) -> None:
    environ["HOME"]
    os.environ.get("HOME")
    getenv("HOME")
    with open(path) as file:
        file.read()
    call(["true"])
    import sqlite3 as db
    from urllib import request

    db.connect(path)
    request.urlopen(path)
    raise db.DatabaseError


async def branches(run: Run) -> None:
    async def one() -> None:
        time.time()

    async def made_step() -> float:
        return time.time()

    @step
    async def marked() -> float:
        return time.time()

    await run.gather(one)
    await run.step(made_step)
    await run.step(marked)


async def sound(run: Run, time: datetime, open: str, now: float) -> list[str]:
    uuid = open.upper()
    found = [time.now(), os.path.join("a", "b"), datetime(2026, 1, 1), uuid, datetime.fromisoformat(open)]
    await run.sleep(now)
    await run.now()
    return [str(each) for each in found]


FOUND = {
    clocks: [
        "datetime.datetime.now",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.date.today",
        "time.time",
        "time.monotonic",
        "time.sleep",
    ],
    chances: ["random.random", "random.random", "random.Random", "uuid.uuid4"],
    surroundings: [
        "os.environ",
        "os.environ",
        "os.getenv",
        "open",
        "subprocess.run",
        "sqlite3.connect",
        "urllib.request.urlopen",
    ],
    branches: ["time.time"],
    sound: [],
}


@pytest.mark.parametrize("function", FOUND, ids=lambda each: each.__name__)
def test_each_call_outside_of_steps_is_named_at_its_line(function: object) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        workflow(function)  # type: ignore[call-overload]
    assert all(issubclass(each.category, NondeterminismWarning) for each in caught)
    said = [str(each.message) for each in caught]
    names = [each.split(" uses ")[1].split(" outside of a step: ")[0] for each in said]
    assert names == FOUND[function]  # type: ignore[index]
    lines = _HERE.read_text(encoding="utf-8").splitlines()
    for each, name in zip(caught, names, strict=True):
        assert Path(each.filename) == _HERE
        last = name.rpartition(".")[2]
        assert any(word in lines[each.lineno - 1] for word in (last, "chance", "call(", "seconds")), each


def test_what_to_use_instead_is_said() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        workflow(clocks)
    said = {str(each.message) for each in caught}
    assert (
        "workflow clocks uses time.time outside of a step: use `await run.now()`, which is recorded" in said
    )
    assert any("time.sleep outside of a step: use `await run.sleep(...)`" in each for each in said)


def test_without_source_or_with_far_too_much_nothing_is_said() -> None:
    names: dict[str, Any] = {"Run": Run, "time": time}
    exec("async def hidden(run: Run) -> float:\n    return time.time()\n", names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert workflow(names["hidden"]).name == "hidden"


def test_an_object_of_the_application_is_not_asked_anything() -> None:
    async def careful(run: Run) -> None:
        LAZY.get("a")
        LAZY()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workflow(careful)


class _Lazy:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def __call__(self) -> None: ...


LAZY = _Lazy()

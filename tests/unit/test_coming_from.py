"""Every name of ours on the page for those who come from another product exists, with the arguments it shows."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import jobledger.ledger
import jobledger.workers
from jobledger.ledger import Child, Context, Graph, JobHandle, Ledger, Run
from jobledger.ledger.options import Options, Rules

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
#: What the page says its names stand for; others are the reader's own tasks, steps and values.
OBJECTS: dict[str, type] = {
    "run": Run,
    "ledger": Ledger,
    "job": JobHandle,
    "child": Child,
    "graph": Graph,
    "context": Context,
}
OF_A_TASK = {*Options.__struct_fields__, *Rules.__struct_fields__, "name", "schedule"}


def ours() -> Iterator[str]:
    """Yield each piece of code in the second column, without commands and requests: a test of all pages tries commands."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            for code in re.findall(r"`([^`]+)`", line.split(" | ")[1]):
                if not code.startswith(("jobledger ", "GET ", "POST ")):
                    yield code


def names_of(function: Any) -> set[str]:
    """Return the names of its arguments, those of a `TypedDict` that it takes as `**options` among them."""
    names = set(inspect.signature(function).parameters)
    if "options" in names:
        for options in get_args(get_type_hints(function)["options"]):
            names |= set(options.__annotations__)
    return names


def missing(code: str) -> str | None:
    """Return what is wrong with a piece of code; None: all that it names exists."""
    found: Any
    tree: ast.expr = ast.parse(code.removeprefix("@").removeprefix("return "), mode="eval").body
    call = tree if isinstance(tree, ast.Call) else None
    named = tree if call is None else call.func
    keywords = [] if call is None else call.keywords
    given = {each.arg for each in keywords if each.arg is not None}
    inner = [missing(ast.unparse(each.value)) for each in keywords]
    wrong = next((each for each in inner if each is not None), None)
    match named:
        case ast.Attribute(value=ast.Name(id=name), attr="options") if name not in OBJECTS:
            known: set[str] = OF_A_TASK
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in OBJECTS:
            found = getattr(OBJECTS[name], attribute, None)
            if found is None:
                return f"{name} has no {attribute}"
            known = names_of(found)
            if "kwargs" in known:  # the input of a task of the reader's
                return wrong
        case ast.Name(id=name) if call is not None or code.startswith("@") or name[0].isupper():
            place = jobledger.workers if name in jobledger.workers.__all__ else jobledger.ledger
            found = getattr(place, name) if name in place.__all__ else None
            if found is None:
                return f"there is no {name}"
            known = names_of(found) | (OF_A_TASK if code.startswith("@") else set())
        case _:
            return wrong
    return wrong or next((f"{code} has no {each}" for each in sorted(given - known)), None)


def test_every_name_of_ours_exists_with_its_arguments() -> None:
    codes = list(ours())
    assert len(codes) > 50
    assert [found for code in codes if (found := missing(code)) is not None] == []


@pytest.mark.parametrize(
    "code",
    [
        "run.not_there(1)",
        "run.wait(approved, until=3)",
        "@workflow(wait=3)",
        "Limits(1)",
        "order.options(task=1)",
    ],
)
def test_what_does_not_exist_is_found(code: str) -> None:
    assert missing(code) is not None

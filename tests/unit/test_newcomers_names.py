"""What somebody from another job system writes first is answered by the line to write instead."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest
from tests.support.tables import each_row

from jobledger.ledger import task


@task(queue="mail")
async def send(to: str) -> None: ...


@each_row("name", ["delay", "apply_async", "send", "kiq", "enqueue", "defer"])
def test_what_other_systems_let_a_task_do_names_enqueue(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(send, name)("ann@example.com")
    assert str(caught.value).startswith(f"task send has no {name}(): write `await ledger.enqueue(send, ...)`")
    assert not hasattr(send, name)


def test_other_attributes_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match="'TaskFunction' object has no attribute 'nothing'"):
        getattr(send, "nothing")  # noqa: B009 - a type checker would refuse it
    assert copy.copy(send).name == "send"
    assert pickle.loads(pickle.dumps(send.defaults)) == send.defaults


@each_row(
    "package, name, home",
    [
        ("jobledger.ledger", "Worker", "jobledger.workers"),
        ("jobledger.ledger", "MemoryLedger", "jobledger.testing"),
        ("jobledger.workers", "task", "jobledger.ledger"),
        ("jobledger.workers", "connect", "jobledger.ledger"),
        ("jobledger", "task", "jobledger.ledger"),
        ("jobledger", "connect", "jobledger.ledger"),
        ("jobledger", "workflow", "jobledger.ledger"),
    ],
)
def test_a_name_of_another_package_is_told_with_its_line(package: str, name: str, home: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from {package} import {name}")
    assert str(caught.value) == f"{package} has no {name}: write `from {home} import {name}`"
    assert hasattr(importlib.import_module(home), name)


def test_the_first_of_several_names_is_told() -> None:
    with pytest.raises(
        ImportError, match=r"^jobledger has no task: write `from jobledger\.ledger import task`$"
    ):
        exec("from jobledger import task, connect")

"""The errors as a tree: the drawing in the docstring is the code, and the texts are sentences."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

from tests.support.tables import each_row

import jobledger.ledger
from jobledger.audit import errors as audit_errors
from jobledger.ledger.model import errors
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    IllegalTransitionError,
    InvalidTokenError,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    LedgerError,
    PayloadTooLargeError,
    StaleClaimError,
    StreamMismatchError,
    TaskNotFoundError,
    UnknownTaskError,
    WrongSequenceError,
)
from jobledger.ledger.model.hooks import errors as hook_errors
from jobledger.ledger.subscriptions import errors as subscription_errors

MODULES = (errors, audit_errors, hook_errors, subscription_errors)


def _classes(module: ModuleType) -> list[type[LedgerError]]:
    """The errors that a module defines."""
    found = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, LedgerError)]
    return [cls for cls in found if cls.__module__ == module.__name__]


CLASSES = [cls for module in MODULES for cls in _classes(module)]


def _drawn(module: ModuleType) -> dict[str, str]:
    """Error -> parent, as the module's docstring draws them."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in inspect.cleandoc(module.__doc__ or "").splitlines():
        name = re.search(r"\b\w+Error\b", line)
        if name is None:
            continue
        depth = name.start() // 4
        path[depth:] = [name.group()]
        if depth:
            parents[name.group()] = path[depth - 1]
    return parents


@each_row("module", MODULES, ids=lambda module: module.__name__)
def test_the_drawing_is_the_tree(module: ModuleType) -> None:
    classes = [cls for cls in _classes(module) if cls is not LedgerError]
    assert classes
    assert _drawn(module) == {cls.__name__: cls.__bases__[0].__name__ for cls in classes}


@each_row("cls", CLASSES)
def test_every_error_has_one_parent_and_a_docstring(cls: type[LedgerError]) -> None:
    assert len(cls.__bases__) == 1
    assert cls.__doc__
    assert cls.__name__.endswith("Error")


def test_applications_import_every_error_of_the_ledger_from_one_place() -> None:
    names = {
        cls.__name__ for module in (errors, hook_errors, subscription_errors) for cls in _classes(module)
    }
    assert {name for name in names if not hasattr(jobledger.ledger, name)} == set()
    assert names - set(jobledger.ledger.__all__) == set()
    exported = jobledger.ledger.__all__
    assert sorted(exported, key=lambda name: (not name.isupper(), name)) == exported  # constants first


_OPTION = re.compile(r"(?<![\w-])--[a-z]")
_LEDGER = Path(inspect.getfile(errors)).parents[1]


def _texts(path: Path) -> list[str]:
    """Return the texts in a module's code, where it may name an option; docstrings speak to who reads it."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source))) if "--" in source else []
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_sentences_of_the_ledger_name_no_option_of_the_command_line() -> None:
    """A program that meets them has none."""
    modules = [path for path in _LEDGER.rglob("*.py") if path.name != "server.py"]  # which starts nats-server
    found = {path.name: [text for text in _texts(path) if _OPTION.search(text)] for path in modules}
    assert len(modules) > 50
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert _OPTION.search("name another with --url")


SENTENCES: list[tuple[LedgerError, str, dict[str, object]]] = [
    (InvalidTokenError("queue", "a.b"), "queue 'a.b' is not valid: use 1 to 64 characters out of A-Z a-z 0-9 _ and -", {"field": "queue"}),
    (InvalidTokenError("queue", "x" * 100), f"queue '{'x' * 59}... (100 characters) is not valid: use 1 to 64 characters out of A-Z a-z 0-9 _ and -", {}),
    (UnknownTaskError("send", []), "there is no task 'send'; no task is loaded: load the module that defines it", {"name": "send"}),
    (UnknownTaskError("send", ["a", "b"]), "there is no task 'send'; known tasks: a, b: load the module that defines it", {}),
    (PayloadTooLargeError("input", 2_000_000, 1_000), "the input has 2,000,000 bytes and the limit is 1,000: store it elsewhere and pass a reference", {"size_bytes": 2_000_000, "limit_bytes": 1_000}),
    (TaskNotFoundError("sned", ["send"]), "no worker has ever announced a task 'sned': did you mean send? a worker does that when it starts", {"task": "sned", "near": ["send"]}),
    (JobNotFoundError("j"), "no job 'j' is in the ledger; `jobledger jobs list` shows those that are", {"job_id": "j"}),
    (AmbiguousIdError("a", list("bcdefg")), "'a' matches several jobs (b, c, d, e, f, ...): give more of the id, or the queue as well", {"prefix": "a"}),
    (IllegalTransitionError("j", "queued", "be discarded"), "job j is queued: it cannot be discarded", {"state": "queued"}),
    (JobExistsError("j"), "job j exists already", {"job_id": "j"}),
    (StaleClaimError("j", 3, 5), "job j: claim 3 is stale, the current one is 5", {"held_epoch": 3, "current_epoch": 5}),
    (WrongSequenceError("c.>", 4), "c.> has moved past stream sequence 4", {"chain": "c.>", "expected": 4}),
    (StreamMismatchError("LEDGER", ["max_age: is 1, must be 0"]), "stream LEDGER exists with settings jobledger cannot work with (max_age: is 1, must be 0): change them with your NATS tools, or use another environment", {"name": "LEDGER"}),
    (JobFailedError("j", "boom", error=1), "job j failed: boom", {"error": 1}),
]  # fmt: skip


@each_row(("error", "sentence", "data"), SENTENCES, ids=lambda value: type(value).__name__)
def test_errors_say_one_sentence_and_carry_their_data(
    error: LedgerError, sentence: str, data: dict[str, object]
) -> None:
    assert str(error) == sentence
    assert {name: getattr(error, name) for name in data} == data

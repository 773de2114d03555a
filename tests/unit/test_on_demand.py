"""Packages that import their names when asked for them: what checkers of types see is what is there."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.tables import each_row

PACKAGES = (
    "jobledger.ledger",
    "jobledger.projections",
    "jobledger.audit.archive",
    "jobledger.audit.export",
    "jobledger.audit.verify",
    "jobledger.testing",
    "jobledger.workers",
)


def _declared(package: ModuleType) -> dict[str, str]:
    """Return each name that the package imports, for a checker of types or at once, with its module."""
    tree = ast.parse(inspect.getsource(package))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = {name.name: node.module or "" for node in nodes for name in node.names}
    return {name: module for name, module in found.items() if name not in {"TYPE_CHECKING", "on_demand"}}


def test_every_package_that_does_so_is_checked_here() -> None:
    roots = Path(__file__).parents[2]
    texts = {path: path.read_text(encoding="utf-8") for path in roots.glob("*/jobledger/**/__init__.py")}
    found = {".".join(path.parent.parts[-2:]) for path, text in texts.items() if "on_demand(" in text}
    assert {".".join(name.split(".")[-2:]) for name in PACKAGES} == found


@each_row("name", PACKAGES)
def test_what_a_checker_of_types_is_told_is_what_is_there(name: str) -> None:
    package = import_module(name)
    declared = _declared(package)
    assert set(package.__all__) == declared.keys()
    for each, module in declared.items():
        assert getattr(package, each) is getattr(import_module(module), each), each
    assert set(package.__all__) <= set(dir(package))


@each_row("name", PACKAGES)
def test_no_name_is_that_of_a_module_which_would_take_its_place(name: str) -> None:
    package = import_module(name)
    inside = {path.stem for folder in package.__path__ for path in Path(folder).iterdir()}
    assert inside & set(package.__all__) == set()


def test_the_names_can_be_imported_all_replaced_and_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    package = import_module("jobledger.projections")
    before = package.Store
    with monkeypatch.context() as patching:
        patching.setattr("jobledger.projections.Store", None)
        assert package.Store is None
    assert package.Store is before
    with pytest.raises(AttributeError, match=r"module 'jobledger\.projections' has no attribute 'Shop'"):
        _ = package.Shop
    program = "from jobledger.projections import *; assert {'Store', 'as_of'} <= globals().keys()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

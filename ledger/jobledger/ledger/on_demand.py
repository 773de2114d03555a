"""Packages whose names are imported when they are first asked for.

An import of one module runs the `__init__` of its package, too. If that imported all names of the package for others,
each process would load all modules, and most of a start is spent on imports. Source: PEP 562.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def on_demand(
    package: str, homes: Mapping[str, Sequence[str]], elsewhere: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    `homes`: each module, below the package, with the names that others import from the package. No name may be that of
    a module directly in the package: Python would replace it by the module once that is imported.
    `elsewhere`: names that people look for here but that another package has. An import of such a name raises an
    ImportError that names that package.
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> object:
        if elsewhere is not None and name in elsewhere:
            # `from ... import` hides the text of an AttributeError.
            line = f"from {elsewhere[name]} import {name}"
            raise ImportError(f"{package} has no {name}: write `{line}`", name=package)
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # Python finds it there from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return find, names

"""nats-py's JetStream client, loaded at its first use.

nats-py's connection imports it, and it takes two thirds of the time to load nats-py. The ledger has requests of its
own and uses only nats-py's object store, which a command that lists jobs does not need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final

_NAME: Final = "nats.js"


def load_jetstream_at_first_use() -> None:
    """Delay the loading of `nats.js`, unless nats-py is loaded already.

    Only for a process whose other threads do not import nats-py: two threads that use it first at the same time would
    load it twice.
    """
    package = None if "nats" in sys.modules else find_spec("nats")
    spec = None if package is None else PathFinder.find_spec(_NAME, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return
    module, loader = module_from_spec(spec), spec.loader

    def load(name: str) -> object:
        # The module itself imports its parts while it loads: these must be found as in any package.
        del vars(module)["__getattr__"]
        loader.exec_module(module)
        return getattr(module, name)

    vars(module)["__getattr__"] = load  # called for names that the module lacks; source: PEP 562
    sys.modules[_NAME] = module
    vars(import_module("nats"))["js"] = module  # as a normal import does

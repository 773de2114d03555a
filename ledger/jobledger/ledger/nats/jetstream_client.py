"""nats-py's JetStream client, loaded when something of it is used first.

nats-py's connection imports it, and two thirds of the time that nats-py takes to load are this part's. The ledger has
requests of its own; of nats-py's it uses the object store, which a command that lists jobs does not need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final

_NAME: Final = "nats.js"


def load_jetstream_at_first_use() -> None:
    """Put off loading `nats.js`, unless nats-py is loaded already.

    Only for a process whose other threads do not import nats-py: two threads that use it first at the same time would
    load it twice.
    """
    package = None if "nats" in sys.modules else find_spec("nats")
    spec = None if package is None else PathFinder.find_spec(_NAME, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return
    module, loader = module_from_spec(spec), spec.loader

    def load(name: str) -> object:
        # The module itself asks for its parts while it loads: those are to be found as in any package.
        del vars(module)["__getattr__"]
        loader.exec_module(module)
        return getattr(module, name)

    vars(module)["__getattr__"] = load  # called for what the module lacks; source: PEP 562
    sys.modules[_NAME] = module
    vars(import_module("nats"))["js"] = module  # as an import that loads it does

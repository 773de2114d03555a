"""A process that does nothing but run jobs: what may be decided for the whole of it, by whoever owns it."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG_OBJECTS: Final = 20_000
_GENERATIONS: Final = 20


def settle() -> None:
    """Let the garbage collector pass over what was imported, and come less often.

    A job makes a few hundred short-lived objects that reference counting frees by itself; at the default of 700
    allocations the collector took an eighth of a worker's time to find nothing. Cycles are still collected.
    For the owner of the process to call, once, after the imports: a library must not.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _GENERATIONS, _GENERATIONS)

"""What the callback of a workflow is told of its run."""

from __future__ import annotations

from typing import Literal

import msgspec


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: the input of `on_success` and `on_fail` of its workflow."""

    id: str
    queue: str
    task: str
    state: Literal["completed", "dead_lettered", "cancelled"]
    error: str = ""  #: of a dead letter, as a sentence; the reason of one that was cancelled

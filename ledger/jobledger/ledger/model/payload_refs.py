"""Which large values an event refers to, and where they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from jobledger.ledger.model.events import (
    Carried,
    Checkpointed,
    Completed,
    Held,
    JobEvent,
    PayloadRef,
    Queued,
    Scheduled,
)

_DIGEST: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)

#: Where a value lies: inputs and checkpoints as long as the ledger, results for a week.
StoreName = Literal["inputs", "results"]


def is_digest(name: str) -> bool:
    """Return whether `name` is a sha256 as we write them: nothing else may become the name of a file."""
    return _DIGEST.fullmatch(name) is not None


def references_of(event: JobEvent) -> Iterator[tuple[StoreName, PayloadRef]]:
    """Yield what an event refers to."""
    if isinstance(event, Queued | Scheduled | Held):
        if event.input_ref is not None:
            yield "inputs", event.input_ref
    elif isinstance(event, Completed):
        if event.result_ref is not None:
            yield "results", event.result_ref
    elif isinstance(event, Checkpointed):
        if event.value_ref is not None:
            yield "inputs", event.value_ref
    elif isinstance(event, Carried):
        job = event.job_state
        found = (("inputs", job.input_ref), ("inputs", job.checkpoint_ref), ("results", job.result_ref))
        for store, reference in found:
            if reference is not None:
                yield store, reference  # type: ignore[misc]

"""Traces: the W3C traceparent that a job carries, of its caller or, where that has none, one of the job's own."""

from __future__ import annotations

import hashlib
import re
from typing import Final

#: The flags of a trace that nobody records: random, not sampled. Whoever records the job may decide to sample it.
_OWN_FLAGS: Final = "02"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def own_trace(queue: str, job_id: str) -> str:
    """Return the traceparent of a job whose caller has none: the same for the same job, so that enqueueing is idempotent."""
    digest = hashlib.sha256(f"{queue}/{job_id}".encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-{_OWN_FLAGS}"


def is_own(traceparent: str) -> bool:
    """Return whether nobody has recorded a span of this trace before the job."""
    return traceparent.endswith(f"-{_OWN_FLAGS}")


def trace_id(traceparent: str) -> str:
    """Return the trace id of a traceparent, 32 characters, "" where it is none."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return "" if found is None else found[1]

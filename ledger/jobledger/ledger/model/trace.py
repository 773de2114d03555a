"""Traces: the W3C traceparent of a job, from its caller or, without one, the job's own. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

#: The end of a traceparent that nobody records: random, not sampled. The worker decides whether to sample it.
OWN: Final = "-02"
_HEX: Final = re.compile("[0-9a-f]{32}")
_NO_SPAN: Final = "0" * 16
_CHARACTERS: Final = 55


def own_trace(queue: str, job_id: str) -> str:
    """Return the traceparent of a job whose caller has none; each job has always the same one.

    The trace id of a job with a UUID is that UUID, so that an index of trace ids grows in the order of time.
    """
    digits = job_id.replace("-", "")
    if _HEX.fullmatch(digits) is None or digits.endswith(_NO_SPAN):
        digits = hashlib.sha256(f"{queue}/{job_id}".encode()).hexdigest()[:32]
    return f"00-{digits}-{digits[16:]}{OWN}"


def is_own(traceparent: str) -> bool:
    """Return whether the trace began with a job: nobody has recorded a span of it before."""
    return traceparent.endswith(OWN)


def trace_id(traceparent: str) -> str:
    """Return the trace id of a traceparent, 32 characters; "" for none."""
    return traceparent[3:35] if len(traceparent) == _CHARACTERS else ""

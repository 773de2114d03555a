"""Which failures are the same one: a short name for an error, whatever its numbers, ids and quoted values. Pure.

Made of the task, the error's kind and type, its message without what differs from job to job, and the innermost
frame of the user's code by file and function, not by line. Changing any of it changes every fingerprint, so a
projection that keeps them is rebuilt.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job

#: Hex digits of a fingerprint: 10,000 different ones share none, but for a chance of 1 in 5 million.
FINGERPRINT_LENGTH: Final = 12
_MESSAGE_LENGTH_MAX: Final = 500

#: Each alternative begins with a character that fixes it and has no nested repetition, so the time is linear.
_VARYING: Final = re.compile(
    r"'[^'\n]{0,300}'"
    r'|"[^"\n]{0,300}"'
    r"|`[^`\n]{0,300}`"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f]{0,63}[0-9])[0-9a-f]{8,64}\b"  # a hash, or the part of one that is shown
    r"|[-+]?\d[\d.,:_]*",
    flags=re.IGNORECASE,
)
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]{1,400})", line \d+, in (?P<function>[^\n]{1,200})$', re.MULTILINE
)
_FOREIGN: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "\\lib\\", "<frozen ")


def fingerprint(task: str, error: ErrorInfo | None, reason: str = "") -> str:
    """Return the name of a failure of a task: 12 hex digits, equal for what is most likely one cause.

    `reason` stands in for an error where there is none.
    """
    parts = [task, reason] if error is None else [task, *_parts(error)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:FINGERPRINT_LENGTH]


def job_fingerprint(job: Job) -> str:
    """Return the fingerprint of a dead letter."""
    return fingerprint(job.task, job.error, job.dead_reason or "")


def _parts(error: ErrorInfo) -> list[str]:
    return [error.kind, error.type, normalised(error.message), innermost_frame(error.traceback)]


def normalised(message: str) -> str:
    """Return the first line of a message without numbers, ids and quoted values: what stays the same."""
    line = message.strip().partition("\n")[0][:_MESSAGE_LENGTH_MAX]
    return " ".join(_VARYING.sub("#", line).split())


def innermost_frame(traceback: str) -> str:
    """Return `<file>:<function>` of the newest frame outside libraries, of the newest at all, or "" without any."""
    users = newest = ""
    for match in _FRAME.finditer(traceback):
        file = match["file"]
        newest = f"{file.replace(chr(92), '/').rpartition('/')[2]}:{match['function']}"
        if not any(part in file for part in _FOREIGN):
            users = newest
    return users or newest

"""Fingerprints: a short name for an error, the same whatever its numbers, ids, hosts and quoted values are. Pure.

Made of the task, the error's kind and type, its message without the parts that differ between jobs, and the innermost
frame of the user's code, by file and function but not by line. Changing any of it changes every fingerprint, so a
projection that keeps them is rebuilt.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job

#: Hex digits of a fingerprint: 10,000 different failures share one with a chance of 1 in 5 million.
FINGERPRINT_LENGTH: Final = 12
_MESSAGE_LENGTH_MAX: Final = 500

#: Endings of names of hosts; only some, since `tasks.py` and `app.tasks.send` are no hosts.
_TOP_LEVEL: Final = (
    "com|net|org|io|dev|app|cloud|ai|co|info|biz|edu|gov|internal|local|lan|corp|home|test|example|invalid|"
    "at|au|be|br|ca|ch|cn|cz|de|dk|es|eu|fi|fr|hu|ie|in|it|jp|kr|mx|nl|no|nz|pl|pt|ro|ru|se|sg|sk|tr|tw|ua|uk|us|za"
)
#: Each alternative begins at the start of a word, or with a fixed character, and each repetition can match in one way
#: only, so the time is linear.
_VARYING: Final = re.compile(
    r"(?<!\w)[bru]?'[^'\n]{0,300}'"  # not the apostrophe of "can't"
    r'|(?<!\w)[bru]?"[^"\n]{0,300}"'
    r"|`[^`\n]{0,300}`|\u201c[^\u201d\n]{0,300}\u201d|\u2018[^\u2019\n]{0,300}\u2019|\u00ab[^\u00bb\n]{0,300}\u00bb"
    r"|(?<![\w.+%-])[\w.+%-]{1,64}@[\w.-]{1,255}"  # an e-mail address
    r"|(?<=://)[^\s/?#'\"<>,;)]{1,300}"  # user, host and port of a URL; its path stays, to tell the request
    rf"|(?<![\w.@/-])(?:[a-z0-9-]{{1,63}}\.){{1,8}}(?:{_TOP_LEVEL})\b(?![.\w(-])(?::\d{{1,5}})?"
    r"|(?<![\w:])(?=[0-9a-f:]{0,39}::)(?=[a-f:]{0,39}\d)[0-9a-f:]{2,39}"  # an IPv6 address
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f]{0,63}[0-9])[0-9a-f]{8,64}\b"  # a hash, or a shortened hash
    r"|(?<![a-z\d])(?:[a-z]+\d+[a-z]|\d+[a-z]+\d)[a-z\d]*"  # an id: letters and digits take turns
    r"|[-+]?\d[\d.,:_]*(?:e[-+]?\d+)?",
    flags=re.IGNORECASE,
)
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,200})$', re.MULTILINE
)
_LINE: Final = re.compile(r":\d+ ")
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


def job_pattern(job: Job) -> str:
    """Return the message of a dead letter without the parts that differ between jobs; "" without an error."""
    message = "" if job.error is None else job.error.message
    whole = (
        message[:1] in {"'", '"'} and message[-1:] == message[:1]
    )  # such as that of a KeyError, of which nothing would be left
    return normalised(message[1:-1] if whole else message)


def _parts(error: ErrorInfo) -> list[str]:
    if isinstance(error.where, str):  # of an owner's job: the words are sealed
        return [error.kind, error.type, "", _LINE.sub(":", error.where)]
    return [error.kind, error.type, normalised(error.message), innermost_frame(error.traceback)]


def normalised(message: str) -> str:
    """Return the first line of a message without numbers, ids, addresses, hosts and quoted values."""
    line = message.strip().partition("\n")[0][:_MESSAGE_LENGTH_MAX]
    return " ".join(_VARYING.sub("#", line).split())


def innermost_frame(traceback: str) -> str:
    """Return `<file>:<function>` of the newest frame outside libraries, else of the newest frame; "" without frames."""
    return _LINE.sub(":", innermost_line(traceback))


def innermost_line(traceback: str) -> str:
    """Return `<file>:<line> <function>` of the frame that `innermost_frame` names; "" without frames."""
    users = newest = ""
    for match in _FRAME.finditer(traceback):
        file = match["file"]
        name = file.replace("\\", "/").rpartition("/")[2]
        newest = f"{name}:{match['line']} {match['function']}"
        if not any(part in file for part in _FOREIGN):
            users = newest
    return users or newest

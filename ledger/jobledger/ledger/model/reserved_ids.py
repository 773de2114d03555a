"""Derived ids: the forms that are reserved for them, and the id of a job whose derived id is taken. Pure.

A tick, a webhook, a run or an `Idempotency-Key` derives the id of the job that it makes, so that it is made once.
Nobody else may give a job such an id: that job would take the place of the derived one. Each form is as narrow as its
derivation, so anybody may use `week-end` and `order-77`. Source: ADR 051.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import JobRef

_UUID7: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
#: Suffixes of a run's id: for its end, a child, the run that continues it; each of these may be a run, too.
_MADE: Final = r"(?:-(?:end|\d+-\d+|r\d+)(?:-of-.+)?)+"
#: The id derived from an `Idempotency-Key` (`keyed_id` of a gateway), and that of a line of a bulk request.
_KEYED: Final = re.compile(r"(i-[A-Za-z0-9_-]{43})(?:-[1-9]\d*)?", flags=re.ASCII)
_FORMS: Final = tuple(
    (whose, re.compile(form, flags=re.ASCII))
    for whose, form in (
        ("ticks of schedules", r".+-\d{8}T\d{6}(?:\d{6})?Z(?:-hooks)?"),
        ("jobs that somebody triggers", r".+-manual-\d{1,19}(?:-hooks)?"),
        ("jobs of webhooks", r"webhook-.+-\d{1,19}(?:-r\d{1,6})?"),
        ("jobs of deliveries", r"w-[A-Za-z0-9_-]{43}(?:-r\d{1,6})?"),
        ("derived ids that were too long", r"[tce][0-9a-f]{40}"),
        ("jobs whose derived id was taken", r"taken-[0-9a-f]{40}"),
    )
)
#: Any of these forms, or an id that a run derives from such an id or a UUID. One pattern: each job's id is checked.
_ANY: Final = re.compile(
    f"(?:{'|'.join([_KEYED.pattern, *(form.pattern for _, form in _FORMS)])})(?:{_MADE})?|{_UUID7}{_MADE}",
    flags=re.ASCII,
)
_DIGITS: Final = 40
#: Beginning of the id of a job whose derived id was taken.
TAKEN: Final = "taken-"
#: The name in its metadata under which that derived id is stored.
INSTEAD_OF: Final = "instead_of"


def check_unreserved(job_id: str, keyed: str = "") -> None:
    """Refuse a chosen id that has the form of a derived one.

    `keyed`: the id derived from the `Idempotency-Key` of the request; this id and those of its lines are allowed.

    Raises: InvalidInputError.
    """
    if _ANY.fullmatch(job_id) is None:
        return
    of_key = _KEYED.fullmatch(job_id)
    if of_key is not None:
        whose = "" if keyed and of_key[1] == keyed else "jobs that an Idempotency-Key names"
    else:
        whose = next((whose for whose, form in _FORMS if form.fullmatch(job_id)), "what a run makes")
    if whose:
        raise InvalidInputError(f"id {job_id} has the form that is kept for {whose}: choose another one")


def instead_of(ref: JobRef) -> JobRef:
    """Return the ref of the job that replaces one whose derived id is taken."""
    return JobRef(queue=ref.queue, job_id=TAKEN + hashlib.sha256(ref.job_id.encode()).hexdigest()[:_DIGITS])

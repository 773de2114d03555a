"""The checker: whether a ledger, or an export of one, is what its events say it is. Reads only.

`checking` reads a whole ledger and feeds the `checker`, which holds each event to the `rules`. What it keeps of jobs
are `records` in a `book`, and beyond its share of memory in a `spill`; `tally` counts. `locks`, `reactors` and `seals`
are the parts about what is no job, `times` the one about the server's times. `terms` is what a caller says, `report`
what it gets, `limits` what the report does not prove, `file` a report on the disk.
"""

from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.checking import Witness, leftovers, verify
from jobledger.audit.verify.limits import Anchors
from jobledger.audit.verify.report import Compared, Report, Violation
from jobledger.audit.verify.terms import Expected, Leftover, Options

__all__ = [
    "Anchors",
    "Checker",
    "Compared",
    "Expected",
    "Leftover",
    "Options",
    "Report",
    "Violation",
    "Witness",
    "leftovers",
    "verify",
]

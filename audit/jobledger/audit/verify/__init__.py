"""The checker: whether a ledger, or an export of one, is what its events say it is. Reads only.

`verification` reads a whole ledger and feeds the `checker`, which holds each event to the `rules`. What it keeps of jobs
are `records` in a `store` of bounded memory; `tally` counts. `chains` is the part about other aggregates, `seals` that
about seals, `links` that about hash links, `earlier` an earlier report, `payloads` large values and `references`,
`times` the server's times. `options` is what a caller gives, `report` what it gets, `unproven`
what the report does not prove, `file` a report on the disk.
"""

from typing import TYPE_CHECKING

from jobledger.ledger.on_demand import on_demand

if TYPE_CHECKING:
    from jobledger.audit.verify.checker import Checker
    from jobledger.audit.verify.options import CheckOptions, Expectation, Leftover
    from jobledger.audit.verify.report import CrossCheck, Report, Violation
    from jobledger.audit.verify.verification import Witness, leftovers, verify
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "checker": ("Checker",),
            "verification": ("Witness", "leftovers", "verify"),
            "options": ("CheckOptions", "Expectation", "Leftover"),
            "report": ("CrossCheck", "Report", "Violation"),
        },
    )

__all__ = [
    "CheckOptions",
    "Checker",
    "CrossCheck",
    "Expectation",
    "Leftover",
    "Report",
    "Violation",
    "Witness",
    "leftovers",
    "verify",
]

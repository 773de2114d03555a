"""The first rows of a run's table, for the API and the page of the run; shown only with the right to see payloads."""

from __future__ import annotations

from jobledger.admin.tables.files import recorded_table
from jobledger.admin.tables.first_rows import FirstRows, first_rows
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.job import Job


async def rows_of(gateway: Gateway, run: Job, step: str, limit: int) -> FirstRows:
    """Return the first rows of a table of a run, which `recorded_table` finds; a process reads few tables at a time.

    Raises: ProblemError (NO_TABLES); NotFoundError; as `first_rows`.
    """
    made = recorded_table(run, step)
    async with gateway.table_reads:
        try:
            return await first_rows(gateway.ledger, made, limit)
        except ConfigurationError as error:
            raise ProblemError("NO_TABLES", f"this gateway cannot read tables: {error}") from error

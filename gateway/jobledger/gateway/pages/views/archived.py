"""A job whose events were moved into an archive: how it ended, and which command shows all of it."""

from __future__ import annotations

from jobledger.admin.errors import JobNotHeldError, MissingEvents
from jobledger.gateway.pages.page import Viewer
from jobledger.gateway.pages.shell import PageFacts, opened
from jobledger.projections import JobRow


class ArchivedPage(PageFacts, frozen=True, kw_only=True):
    """The page."""

    row: JobRow
    where: str  #: one sentence


async def archived(looked: Viewer, queue: str, error: JobNotHeldError) -> ArchivedPage:
    """Return what the lists know of a job that the ledger no longer holds. Raises: the error, for who may not see one."""
    looked.principal.require("view", queue)
    async with opened(looked) as (view, shell):
        row = view.store.job(queue, error.job_id)
        if row is None or error.missing is None or not looked.principal.may("view", row.queue, row.task):
            raise error
        return ArchivedPage(shell=shell, row=row, where=where_is(error.missing, row.id))


def where_is(missing: MissingEvents, job_id: str) -> str:
    """Say where the events are that are missing, and which command reads them."""
    return missing.sentence(f"`jobledger jobs show {job_id} --archive DIR`")

"""The first rows of a table of a run: a page of its own, whose table the page of the run shows, too."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, shell_of
from jobledger.gateway.pages.views.job import job_of
from jobledger.gateway.pages.words import cut, json_line
from jobledger.gateway.table_rows import rows_of
from jobledger.ledger.model.commands import STEP_KEY_MAX
from jobledger.ledger.model.job import Job

_ROWS: Final = 20
_COLUMNS_MAX: Final = 40
_TEXT_MAX: Final = 160  #: characters of a value that are shown
_NUMBERS: Final = ("int", "uint", "halffloat", "float", "double", "decimal")


class Query(When, frozen=True, kw_only=True):
    """The choice of a table."""

    step: Annotated[str, msgspec.Meta(max_length=STEP_KEY_MAX)] = ""  #: "": the run's only table


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column that is shown."""

    name: str
    type: str
    is_number: bool


class RowsPage(PageFacts, frozen=True, kw_only=True):
    """The page."""

    job: Job
    step: str
    total: int  #: number of rows of the table
    columns: list[Column]
    columns_more: int
    rows: list[list[str | None]]  #: values by column; None: no value


async def rows(looked: Viewer, queue: str, id: str, *, query: Query) -> RowsPage:  # noqa: A002 - as in the address
    """Return the first rows of a table that a run made. Raises: ProblemError, and as `rows_of`."""
    _, job = await job_of(looked, queue, id, "payloads")
    found = await rows_of(looked.gateway, job, query.step, _ROWS)
    shell = await shell_of(looked)
    shown = list(found.columns)[:_COLUMNS_MAX]
    return RowsPage(
        shell=shell,
        job=job,
        step=found.step,
        total=found.rows,
        columns=[
            Column(name=name, type=found.columns[name], is_number=found.columns[name].startswith(_NUMBERS))
            for name in shown
        ],
        columns_more=len(found.columns) - len(shown),
        rows=[[_text(row.get(name)) for name in shown] for row in found.items],
    )


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return cut(value, _TEXT_MAX) if isinstance(value, str) else json_line(value)

"""What every command about a single job begins with: connect, and find the job by its id or a prefix of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from jobledger.cli.output import Output
from jobledger.cli.session import Target, caught_up, opened, projection_path
from jobledger.ledger import JobHandle, Ledger
from jobledger.ledger.errors import AmbiguousIdError, JobNotFoundError
from jobledger.projections import Store

JobId = Annotated[
    str, typer.Argument(metavar="ID", help="The job's id, or a prefix of it that only one job has.")
]


class OneJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which job a command was asked about, where to look for it, and where the answer goes."""

    job_id: str  #: or a prefix
    queue: str | None
    projection: Path | None
    target: Target
    output: Output


def one_job(
    job_id: str, *, queue: str | None, projection: Path | None, url: str, environment: str, as_json: bool
) -> OneJob:
    """Return what a command's options say."""
    return OneJob(
        job_id=job_id,
        queue=queue,
        projection=projection,
        target=Target(url=url, environment=environment),
        output=Output(as_json=as_json),
    )


@contextlib.asynccontextmanager
async def found_job(which: OneJob) -> AsyncGenerator[tuple[Ledger, JobHandle[Any]], None]:
    """Connect for the length of the block and find the job; its history is one read away.

    Raises: InvalidTokenError, JobNotFoundError, AmbiguousIdError.
    """
    async with opened(which.target) as ledger:
        yield ledger, await find_job(ledger, which.output, which.projection, which.job_id, which.queue)


async def find_job(
    ledger: Ledger, output: Output, chosen: Path | None, job_id: str, queue: str | None
) -> JobHandle[Any]:
    """Return the job of that id, else the only one whose id begins with it, found in the projection.

    Raises: InvalidTokenError, JobNotFoundError, AmbiguousIdError.
    """
    try:
        return await ledger.job(job_id, queue=queue)
    except JobNotFoundError:
        path = await projection_path(ledger, chosen)
        await caught_up(ledger, path, output)
        with Store.open(path) as store:
            matches = store.find(job_id, queue=queue)
        if not matches:
            raise
        if len(matches) > 1:
            raise AmbiguousIdError(job_id, [f"{ref.queue}/{ref.job_id}" for ref in matches]) from None
        return await ledger.job(matches[0].job_id, queue=matches[0].queue)

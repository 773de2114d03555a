"""The jobs of a content system, as an application of jobledger."""

import asyncio
import os
from pathlib import Path

from jobledger.ledger import (
    Backoff,
    Context,
    JobHandle,
    Limit,
    Run,
    RunEnd,
    Schedule,
    Skip,
    Tick,
    task,
    workflow,
)

FIXED = Backoff(kind="fixed", base_s=0.2, jitter=0.0)


@task(queue="mail")
async def send(to: str) -> str:
    return f"sent to {to}"


@task(queue="media", max_attempts=3, backoff=FIXED)
async def resize(context: Context, image: str, width: int) -> str:
    if image == "torn" or (image == "flaky" and context.attempt < 3):
        raise ValueError(f"{image} cannot be read")
    if image == "huge" and context.attempt == 1:
        Path("held").write_text(str(os.getpid()), encoding="utf-8")  # noqa: ASYNC240 - a few bytes
        await asyncio.sleep(3_600)
    return f"{image}-{width}"


def slug_of(title: str) -> str:
    return title.lower().replace(" ", "-")


@task(queue="mail")
async def tell(end: RunEnd) -> str:
    return f"{end.id} {end.state}"


@workflow(queue="posts", max_attempts=2, backoff=Backoff(base_s=0.1), on_success=tell, on_fail=tell)
async def create_post(run: Run, title: str, image: str) -> dict[str, str]:
    slug = await run.step(slug_of, title)
    picture = await run.options(on_dead_letter="fail").call(resize, image, 640)
    return {"slug": slug, "picture": picture}


@task(queue="documents", limits=(Limit("document", key="document", slots=1),))
async def publish(document: str, version: int) -> int:
    await asyncio.sleep(0.05)
    return version


@task(queue="documents", limits=(Limit("preview", key="document", slots=1, mode="newest"),))
async def preview(document: str, version: int) -> int:
    return version


@task(queue="upkeep")
async def clean(day: str) -> str:
    return day


def before(tick: Tick) -> dict[str, str] | Skip:
    return {"day": tick.at.date().isoformat()}


def after(tick: Tick, job: JobHandle[str]) -> None:
    with Path("scheduled").open("a", encoding="utf-8") as lines:
        lines.write(f"{tick.schedule} {job.id}\n")


NIGHTLY = Schedule("nightly", cron="30 2 * * *", task=clean, before=before, after=after)
OFTEN = Schedule("often", every_s=1, task=clean, input={"day": "today"})

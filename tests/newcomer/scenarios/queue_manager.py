"""A manager of cron jobs, queues and locks, as an application of jobledger."""

import asyncio
import os
import time
from pathlib import Path

from jobledger.ledger import Backoff, Context, Hooks, Notice, Schedule, task

SOON = Backoff(base_s=0.1)
FLAGS = Path("flags")  #: what the database of an application would keep: documents that need processing


def write_line(what: str, line: str) -> None:
    with Path(what).open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")


def completed(notice: Notice) -> None:
    write_line("callbacks", f"completed {notice.job_id}")


def failed(notice: Notice) -> None:
    write_line("callbacks", f"failed {notice.job_id}")


def stalled(notice: Notice) -> None:
    write_line("callbacks", f"stalled {notice.job_id}")


CALLBACKS = Hooks(on_success=completed, on_dead_letter=failed, on_lost=stalled)


@task(queue="triggers")
def flag(document: str, version: int) -> None:
    FLAGS.mkdir(exist_ok=True)
    (FLAGS / document).write_text(str(version), encoding="utf-8")


def flagged() -> list[tuple[str, int]]:
    return [(each.name, int(each.read_text(encoding="utf-8") or 0)) for each in FLAGS.glob("*")]


@task(queue="crons", schedule=Schedule(every_s=1))
async def queue_flagged(context: Context) -> int:
    found = flagged()
    for document, version in found:
        account = document.partition("-")[0]
        order = update_report.options(id=f"{document}-{version}")
        await context.ledger.enqueue(order, account, document)
        (FLAGS / document).unlink()
    return len(found)


@task(queue="reports", max_attempts=3, backoff=SOON, hooks=CALLBACKS)
async def update_report(context: Context, account: str, document: str) -> int:
    async with context.ledger.lock("account", account, wait_s=30) as held:
        write_line(f"work-{account}", f"begins {context.job_id}")
        if document == "acme-yearly" and context.attempt == 1:
            Path("held").write_text(str(os.getpid()), encoding="utf-8")  # noqa: ASYNC240 - a few bytes
            await asyncio.sleep(3_600)
        await asyncio.sleep(0.02)
        held.check()
        write_line(f"work-{account}", f"ends {context.job_id}")
        return held.fencing_number


@task(queue="contacts", max_attempts=2, backoff=SOON, hooks=CALLBACKS)
def import_contacts(context: Context, account: str, names: list[str]) -> int:
    if "nobody" in names:
        raise ValueError(f"a contact of {account} has no name")
    if account == "slow":
        write_line("slow", context.job_id)
        time.sleep(1)
    return len(names)

"""Jobs with limits in tests: definitions, orders that name them, and what the ledger then says of grants."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tests.support.working import LIMIT_S

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.ledger import JobHandle, Ledger, Task
from jobledger.ledger.model.chain import commit_all
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Enqueue, Remove
from jobledger.ledger.model.events import Carried, Held, Order, Started
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.model.lifecycle import LIFECYCLE
from jobledger.ledger.model.limits.definition import LIMIT, SetLimit, Terms, decide
from jobledger.ledger.model.limits.flow import FLOW, Granted
from jobledger.ledger.model.limits.holders import Holders, JobKey
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.fold import GrantFold
from jobledger.workers.reactors.flow.start import begin, snapshot


async def define(ledger: Ledger, limit: str, **terms: Any) -> None:
    """Set a limit."""
    view = LIMIT.view(*await end_of_chain(ledger.log, LIMIT.chain(ledger.names, limit)))
    event = decide(limit, view.state, SetLimit(terms=Terms(**terms)), ledger.stamp("tester"))
    await commit_all(ledger.log, [(view, [event])])


async def undefine(ledger: Ledger, limit: str) -> None:
    """Take a definition away."""
    view = LIMIT.view(*await end_of_chain(ledger.log, LIMIT.chain(ledger.names, limit)))
    event = decide(limit, view.state, Remove(), ledger.stamp("tester"))
    await commit_all(ledger.log, [(view, [event])])


async def enqueue(
    ledger: Ledger, task: Task[..., Any], *limits: str, job_id: str = "", given: Any = None, **order: Any
) -> JobHandle[Any]:
    """Add a job that names limits, as its enqueuer would after it worked their keys out."""
    ref = JobRef(queue=task.defaults.queue, job_id=job_id or new_identity().rpartition("-")[2])
    made = Order(limits=tuple(sorted(limits)), input=msgspec.Raw(msgspec.json.encode(given or {})), **order)
    await ledger.execute(ref, Enqueue(ref=ref, task=task.name, order=made))
    return ledger.handle_of(ref)


async def grants(ledger: Ledger) -> list[Granted]:
    """Return every grant, the oldest first."""
    found: list[Granted] = []
    async for batch in ledger.log.read_messages(subject=FLOW.of_type(ledger.names, "granted")):
        found += [event for message in batch if isinstance(event := FLOW.decode(message), Granted)]
    return found


async def peaks(log: Log) -> tuple[dict[str, int], dict[str, int]]:
    """Return by name of a limit how many jobs held a slot of one key at once, and how many ran, at the most."""
    holders, waiting = Holders(), dict[JobKey, tuple[int, tuple[str, ...]]]()
    held, ran = Counter[str](), Counter[str]()
    running = dict[JobKey, tuple[str, ...]]()
    now = Counter[str]()
    async for batch in log.read_messages():
        for message in batch:
            if isinstance(message, StoredEvent):
                event = message.event
                job = (event.queue, event.job)
                holding = holders.jobs.get(job)
                if isinstance(event, Started) and job not in running and holding is not None:
                    running[job] = holding.limits
                    now.update(holding.limits)
                    _raise(ran, holding.limits, now)
                holders.feed(event)
                if LIFECYCLE[type(event)].ends is not None:
                    now.subtract(running.pop(job, ()))
                if not isinstance(event, Carried):
                    waiting.pop(job, None)
                if isinstance(event, Held):
                    waiting[job] = (message.stream_sequence, event.limits)
            elif message.subject.endswith(".granted"):
                granted = FLOW.decode(message)
                assert isinstance(granted, Granted)
                for each in granted.jobs:
                    wait, limits = waiting.get((each.queue, each.job), (0, ()))
                    if wait == each.held:
                        key = (each.queue, each.job)
                        holders.take(key, limits, held=wait, grant=1, keeps=lambda _: False)
                        _raise(held, limits, Counter({limit: holders.used(limit) for limit in limits}))
    return dict(held), dict(ran)


def _raise(most: Counter[str], limits: tuple[str, ...], now: Counter[str]) -> None:
    for limit in limits:
        name = limit.partition(":")[0]
        most[name] = max(most[name], now[limit])


async def times_granted(ledger: Ledger) -> Counter[str]:
    """Return how often each job was granted."""
    return Counter(job.job for event in await grants(ledger) for job in event.jobs)


async def begun(ledger: Ledger) -> tuple[Chain, GrantFold]:
    """Return what a reactor knows that begins now."""
    chain = Chain(ledger)
    folding = GrantFold(chain)
    await begin(ledger, chain, folding)
    return chain, folding


async def take_snapshot(ledger: Ledger) -> None:
    """Append a snapshot, as a reactor does that begins now."""
    chain, folding = await begun(ledger)
    with contextlib.closing(folding):
        await snapshot(ledger, chain, folding, by="one")


async def archive_beyond(ledger: Ledger, folder: Path, sequence: int) -> None:
    """Archive what may go, until the ledger begins behind a stream sequence."""
    async with asyncio.timeout(LIMIT_S):
        while (await ledger.log.head()).first_sequence <= sequence:
            await asyncio.sleep(0.1)
            deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
            await Archiver(ledger.log, folder, deps).run(datetime.now(UTC))

"""The child *worker*: runs the gateway's own tasks, and makes a job of each event that matches a webhook.

It holds a lease as every worker does, and hosts the reactors and timers of its environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ObjectReceiveStream

from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.acts.bulk_input import QUEUE
from jobledger.gateway.acts.verification import verify_task
from jobledger.gateway.hooks.addresses import Targets, networks
from jobledger.gateway.hooks.deliver import DeliverySender, deliver_task
from jobledger.gateway.hooks.poster import Poster
from jobledger.gateway.process.messages import Setup, ToChild, ToGateway
from jobledger.ledger import Ledger, Task, TaskRegistry
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.webhooks.secrets import Secrets
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.processes.messages import Ready
from jobledger.workers.reactors.reactor import host
from jobledger.workers.reactors.webhooks import WebhookReactor

_CONCURRENCY: Final = 64


def own_tasks(setup: Setup) -> list[Task[..., Any]]:
    """Return the tasks that a gateway runs itself. Raises: ConfigurationError for text that is no network."""
    secrets = Secrets(os.environ, Path(setup.key_file) if setup.key_file else None)
    poster = Poster(Targets(networks(setup.allow_targets)))
    return [deliver_task(DeliverySender(poster, secrets)), bulk_act, verify_task(Path(setup.projection))]


async def work(
    ledger: Ledger, setup: Setup, line: ToGateway, _requests: ObjectReceiveStream[ToChild]
) -> None:
    """Work until cancelled; report once jobs are taken. Raises: LedgerError, ConnectionLostError."""
    config = WorkerConfig(queues=(DELIVERIES_QUEUE, QUEUE), concurrency=_CONCURRENCY, schedules=False)
    worker = Worker(ledger, TaskRegistry(own_tasks(setup)), config)

    async def tell() -> None:
        await worker.taking.wait()
        line.send(Ready())

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(tell)
            group.start_soon(host, ledger, WebhookReactor(ledger))
            await worker.run()
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        # Several parts may fail at once for one reason, such as a silent server: report it once.
        raise errors.exceptions[0] from errors

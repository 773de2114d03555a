"""The user's code that a gateway has loaded (`--app`): its tasks are announced and its schedules declared, as by a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.identity import new_identity
from jobledger.workers.announcement import announce_tasks
from jobledger.workers.declared_routes import declare_routes
from jobledger.workers.reactors.schedules.declarations import ScheduleDeclarer
from jobledger.workers.reactors.schedules.hooks import with_hooks
from jobledger.workers.services import outlive


class LoadedCode:
    """The announcer of loaded code: even without a worker, tasks can be enqueued by name and schedules tick."""

    def __init__(self, ledger: Ledger, tasks: TaskRegistry, *, schedules: bool) -> None:
        """Announce nothing yet; without `schedules` declare neither these nor routes. Raises: ConfigurationError where there is no task."""
        self.announced = asyncio.Event()  #: the tasks are written, or the server refused them
        self._ledger = ledger
        self._tasks = with_hooks(tasks)
        self._identity = new_identity()
        found = list(tasks.schedules.values()) if schedules else []
        self._routes = list(tasks.routes.values()) if schedules else []
        # Of all queues: jobs of a queue that no worker serves can run in requests to `/v1/run`.
        self._declaring = ScheduleDeclarer(ledger, found, [each.queue for each in found])

    async def keep(self) -> None:
        """Announce the code, again after each failure, until cancelled."""
        await asyncio.gather(
            self._outlive("the announcement", self._announce),
            self._outlive("the schedules", self._declaring.declare_once),
            self._outlive("the routes", lambda: declare_routes(self._ledger, self._routes)),
        )

    async def _announce(self) -> None:
        await announce_tasks(self._ledger, self._tasks, self._identity, done=self.announced)

    async def _outlive(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        await outlive(self._ledger.connection, name, run)

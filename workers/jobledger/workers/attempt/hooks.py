"""The calls of users' hooks: after the event is stored, within a limit, and without any effect on the job."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Final

import anyio
import anyio.to_thread

from jobledger.ledger.hooks import Hook, HookKind, Hooks, Notice
from jobledger.ledger.model.attempts import Attempt
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.tasks import TaskRegistry

logger = logging.getLogger("jobledger.workers.attempt.hooks")

_LIMIT_S: Final = 30.0
_THREADS_MAX: Final = 8
_WAITING_MAX: Final = 1_000
_FAREWELL_S: Final = 5.0


class HookRunner:
    """Runs the hooks of the tasks that a worker has, and of its modules."""

    def __init__(self, tasks: TaskRegistry) -> None:
        self._app_hooks = tasks.hooks
        self._tasks = tasks
        #: Names of the tasks that have a hook; most have none, and cost an attempt only a look into this set.
        self.hooked = frozenset(task.name for task in tasks if self._app_hooks or task.rules.hooks != Hooks())
        self._running: set[asyncio.Task[None]] = set()
        self._threads = anyio.CapacityLimiter(_THREADS_MAX)

    def tell(
        self,
        kind: HookKind,
        job: Job,
        *,
        worker: str = "",
        error: ErrorInfo | None = None,
        reason: str = "",
        will_retry: bool = False,
        attempt: int | None = None,
    ) -> None:
        """Start the hooks for one notice, if there are any; return at once. `attempt`: by default the newest one."""
        if job.task not in self.hooked:
            return
        task_hooks = self._tasks.get(job.task).rules.hooks
        found = [hooks.get(kind) for hooks in (task_hooks, *self._app_hooks)]
        wanted = [hook for hook in found if hook is not None]
        if not wanted:
            return
        notice = Notice(
            kind=kind,
            job_id=job.id,
            queue=job.queue,
            task=job.task,
            attempt=job.attempts_count if attempt is None else attempt,
            worker=worker,
            error=error,
            reason=reason,
            will_retry=will_retry,
        )
        for hook in wanted:
            self._start(hook, notice)

    def tell_dead_letter(self, job: Job, *, worker: str) -> None:
        """Start the hooks for a job that was given up."""
        self.tell("dead_letter", job, worker=worker, error=job.error, reason=job.dead_reason or "")

    def tell_lost(self, job: Job, lost: Attempt, *, goes_on: bool) -> None:
        """Start the hooks for an attempt whose worker died; `goes_on`: another attempt has begun."""
        self.tell("lost", job, worker=lost.worker, attempt=lost.number, will_retry=goes_on)

    def _start(self, hook: Hook, notice: Notice) -> None:
        if len(self._running) >= _WAITING_MAX:
            logger.error(
                "hook %s of job %s is left out: %d are running", _name(hook), notice.job_id, _WAITING_MAX
            )
            return
        running = asyncio.get_running_loop().create_task(self._call(hook, notice))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _call(self, hook: Hook, notice: Notice) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                if inspect.iscoroutinefunction(hook):
                    await hook(notice)
                else:
                    answer = await anyio.to_thread.run_sync(
                        hook, notice, abandon_on_cancel=True, limiter=self._threads
                    )
                    if inspect.isawaitable(answer):
                        await answer
        except TimeoutError:
            logger.error(  # noqa: TRY400 - a sentence
                "hook %s of job %s took more than %g s and was given up",
                _name(hook),
                notice.job_id,
                _LIMIT_S,
            )
        except BaseException as error:  # also SystemExit: a hook must not end the worker
            own_task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and own_task is not None and own_task.cancelling():
                raise
            logger.exception("hook %s failed for job %s (%s)", _name(hook), notice.job_id, notice.kind)

    async def close(self) -> None:
        """Give hooks that run a moment to end."""
        if self._running:
            await asyncio.wait(self._running, timeout=_FAREWELL_S)
        for running in self._running:
            running.cancel()


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", None) or repr(hook)

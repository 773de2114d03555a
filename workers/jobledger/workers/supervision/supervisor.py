"""One process that keeps several worker processes alive: starts, restarts, stops them, and ends a dead one's lease.

It runs no job itself. It ends a lease only after the process was reaped and its process group is gone, so that none of
its processes can still run a job that another worker takes over. Source: ADR 006.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import anyio.abc
import msgspec

from jobledger.ledger.model.errors import ConfigurationError, LedgerError
from jobledger.ledger.model.identity import new_identity
from jobledger.workers.processes.child import POLL_S, START_ERRORS, Child, how_ended
from jobledger.workers.processes.messages import Identity, Ready, Stop
from jobledger.workers.processes.parent import BEAT_S, FROM_SUPERVISED, SaidBySupervised, supervised
from jobledger.workers.processes.restarts import Restarts

logger = logging.getLogger("jobledger.workers.supervision.supervisor")

#: The exit code of a child whose configuration cannot work: another start would end the same.
CONFIGURATION_CODE: Final = 2
PROCESSES_MAX: Final = 256
_IDENTITIES_MAX: Final = 4  #: newest ones of one child; leases of older ones have expired
_GROUP_GONE_S: Final = 5.0
#: Time for processes of a pool, which lead groups of their own and which the kernel kills when their worker dies.
_LAST_BREATH_S: Final = 0.5
_LEASE_END_S: Final = 60.0
_LEASE_RETRY_S: Final = 0.5
_LAST_LEASES_S: Final = 5.0
_SILENCE_S_MIN: Final = 2 * BEAT_S


class SupervisorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes, and how long they may take."""

    processes: int = 1
    what: str = "worker process"  #: the name of each of them in the log
    grace_s: float = 30.0  #: how long running attempts may go on after a stop, as in the children's settings
    farewell_s: float = (
        20.0  #: time after the grace to give jobs back and exit; a `Worker` needs at most 14 s
    )
    restart_s_first: float = 0.1  #: pause before a dead child is replaced; doubled for each further death
    restart_s_max: float = 30.0
    healthy_s: float = 10.0  #: after a child that lived this long the pauses begin at `restart_s_first` again
    silence_s: float | None = (
        None  #: a child whose event loop is blocked for this long is killed; None: never
    )
    reload: bool = False  #: a child that cannot start waits for `restart` instead of ending everything

    def __post_init__(self) -> None:
        """Check every value.

        Raises: ConfigurationError.
        """
        if type(self.processes) is not int or not 1 <= self.processes <= PROCESSES_MAX:
            message = f"processes must be a whole number from 1 to {PROCESSES_MAX}, got {self.processes!r}"
            raise ConfigurationError(message)
        if not 0 < self.restart_s_first <= self.restart_s_max:
            message = (
                f"restart_s_first must be above 0 and at most restart_s_max, got {self.restart_s_first!r}"
            )
            raise ConfigurationError(message)
        if self.silence_s is not None and self.silence_s < _SILENCE_S_MIN:
            message = f"silence_s must be at least {_SILENCE_S_MIN:g}, got {self.silence_s!r}"
            raise ConfigurationError(message)

    def restarts(self) -> Restarts:
        """Return the restart pauses of one place."""
        return Restarts(first_s=self.restart_s_first, max_s=self.restart_s_max, healthy_s=self.healthy_s)


class WorkerProcess(msgspec.Struct, eq=False):
    """One process under supervision."""

    child: Child[SaidBySupervised]
    #: The newest identities under which it took leases.
    identities: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=_IDENTITIES_MAX))
    is_replaced: bool = False  #: True: it was asked to make room for a successor


async def _group_gone(group: int) -> bool:
    """Wait until nothing of a reaped process's group is left; return False if that takes too long."""
    with anyio.move_on_after(_GROUP_GONE_S):
        while True:
            if not _lives(group):
                return True
            await anyio.sleep(POLL_S)
    return False


def _lives(group: int) -> bool:
    # As the first process of a container we are the parent of every orphan, and have to reap it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-group, os.WNOHANG)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # there is one, of another user
        return True
    return True


class Supervisor:
    """Keeps a number of worker processes of one command alive until it is stopped.

    `command` gets two more words, `--supervised NAME:DESCRIPTOR`, for `Parent`. A process that ends, even with exit
    code 0, is replaced after a pause that grows; one that ends with `CONFIGURATION_CODE` before it was ready ends all.
    """

    def __init__(
        self,
        end_lease: Callable[[str], Awaitable[bool]],
        command: Sequence[str],
        config: SupervisorConfig,
        *,
        environment: Mapping[str, str],
        of_place: Callable[[int], Mapping[str, str]] | None = None,
    ) -> None:
        """Start nothing yet.

        `end_lease` marks a worker as gone and returns whether that was needed. `of_place` gives the variables to add to
        the environment of the child at a place, from 0 on, and of those that replace it.
        """
        self._of_place = of_place
        self._end_lease = end_lease
        self._command = tuple(command)
        self._config = config
        self._environment = dict(environment)
        self.identity = new_identity()
        self._processes: set[WorkerProcess] = set()
        self._stopping = anyio.Event()
        self._begun = anyio.Event()  # set once a child was ready, or none will be
        self._changed = anyio.Event()
        self._code = 0
        self._endings: anyio.abc.TaskGroup | None = None

    def stop(self) -> None:
        """Ask the children to stop in good order; the second call stops them at once. Safe in a signal handler."""
        again = self._stopping.is_set()
        limit_s = self._config.farewell_s if again else self._patience_s
        self._stopping.set()
        self._begun.set()
        for process in self._processes:
            process.child.ask(Stop(at_once=again), limit_s)

    def restart(self) -> None:
        """Replace every child, each as soon as it has stopped in good order."""
        self._changed.set()
        self._changed = anyio.Event()
        for process in self._processes:
            process.is_replaced = True
            process.child.ask(Stop(), self._patience_s)

    @property
    def _patience_s(self) -> float:
        return self._config.grace_s + self._config.farewell_s

    async def run(self) -> int:
        """Keep the children until stopped; return an exit code that follows from their ends.

        0: all ended in good order. 1: one had to be killed, or failed while it stopped. Else that of the child which
        could not start. Cancelled, it still stops its children in good order first.
        """
        async with anyio.create_task_group() as self._endings:
            async with anyio.create_task_group() as slots:
                # One first: a fault in its start would be in every start, and should be reported once.
                slots.start_soon(self._keep, 0)
                await self._begun.wait()
                for place in range(1, self._config.processes):
                    slots.start_soon(self._keep, place)
            self._endings.cancel_scope.deadline = anyio.current_time() + _LAST_LEASES_S
        return self._code

    async def _keep(self, place: int) -> None:
        """Keep one child alive: start it, and replace it whenever it has ended."""
        restarts = self._config.restarts()
        environment = self._environment | dict(self._of_place(place) if self._of_place is not None else {})
        while not self._stopping.is_set():
            try:
                process = await self._start(environment)
            except START_ERRORS as error:
                logger.error("no process could be started: %s", error)  # noqa: TRY400 - a sentence
                await self._pause(restarts.pause_s())
                continue
            code = await self._until_buried(process)
            child = process.child
            if self._stopping.is_set():
                self._note_end(child, code)
            elif process.is_replaced:
                restarts.forget()
            elif self._cannot_start(child, code):
                await self._give_up(code)
            else:
                pause_s = restarts.pause_s(anyio.current_time() - child.started_at)
                how = how_ended(code)
                logger.warning("%s %d %s: another starts in %.1f s", child.what, child.pid, how, pause_s)
                await self._pause(pause_s)

    async def _start(self, environment: Mapping[str, str]) -> WorkerProcess:
        return WorkerProcess(
            await Child[SaidBySupervised].start(
                lambda line: (*self._command, *supervised(self.identity, line)),
                FROM_SUPERVISED,
                what=self._config.what,
                environment=environment,
                silence_s=self._config.silence_s,
            )
        )

    async def _until_buried(self, process: WorkerProcess) -> int:
        child = process.child
        self._processes.add(process)
        if self._stopping.is_set():  # the stop came during its start: it has nothing to finish
            child.ask(Stop(at_once=True), self._config.farewell_s)
        try:
            try:
                await self._until_ended(process)
            finally:
                if not child.has_ended:  # we are cancelled: it is stopped in good order all the same
                    child.ask(Stop(), self._patience_s)
                with anyio.CancelScope(shield=True):  # `_patience_s` bounds the wait
                    await self._until_ended(process)
        finally:
            self._processes.discard(process)
            child.kill()  # ends what is left of its group
            code = child.reap()
        assert self._endings is not None, "run made it"
        self._endings.start_soon(self._end_leases, process)
        return code

    async def _until_ended(self, process: WorkerProcess) -> None:
        async for message in process.child.messages():
            if isinstance(message, Ready):
                self._begun.set()
            elif isinstance(message, Identity) and message.name not in process.identities:
                process.identities.append(message.name)
        await process.child.until_ended()

    async def _end_leases(self, process: WorkerProcess) -> None:
        """End the leases of a process that is gone, so that its jobs are taken over at their next delivery."""
        pid = process.child.pid
        if not await _group_gone(pid):
            logger.warning("a process that %d started does not end: its lease is left to expire", pid)
            return
        await anyio.sleep(_LAST_BREATH_S)
        with anyio.move_on_after(_LEASE_END_S):
            for identity in process.identities:
                while True:
                    try:
                        if await self._end_lease(identity):
                            logger.warning("worker %s is gone: its lease is ended", identity)
                        break
                    except LedgerError as error:
                        logger.info("lease of %s cannot be ended yet: %s", identity, error)
                        await anyio.sleep(_LEASE_RETRY_S)
                    except Exception:  # any error: the lease expires anyway, and other processes need care
                        logger.exception("lease of %s cannot be ended", identity)
                        break

    def _cannot_start(self, child: Child[SaidBySupervised], code: int) -> bool:
        if child.is_ready:
            return False
        # Until one was ready, we end with the code with which that worker would have ended alone.
        return code == CONFIGURATION_CODE or (code > 0 and not self._begun.is_set())

    async def _give_up(self, code: int) -> None:
        if self._config.reload:
            logger.warning("the worker could not start: waiting for a change of its files")
            await self._until_changed()
            return
        logger.error("a %s could not start, and another would not either: stopping", self._config.what)
        self._code = self._code or code
        self.stop()

    def _note_end(self, child: Child[SaidBySupervised], code: int) -> None:
        if code != 0:
            logger.error("%s %d %s while it stopped", child.what, child.pid, how_ended(code))
            self._code = self._code or 1

    async def _pause(self, pause_s: float) -> None:
        with anyio.move_on_after(pause_s):
            await self._stopping.wait()

    async def _until_changed(self) -> None:
        async with anyio.create_task_group() as group:

            async def end_with(event: anyio.Event) -> None:
                await event.wait()
                group.cancel_scope.cancel()

            group.start_soon(end_with, self._changed)
            group.start_soon(end_with, self._stopping)

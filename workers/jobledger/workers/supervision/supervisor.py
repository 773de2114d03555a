"""One process that keeps several worker processes alive: starts, restarts, stops them, and ends a dead one's lease.

It runs no job itself. It ends a lease only after the process was reaped and its process group is gone, so that nothing
of it can still run a job that another worker takes over. Source: ADR 006.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import anyio.abc
import msgspec

from jobledger.ledger.model.errors import ConfigurationError, LedgerError
from jobledger.ledger.model.identity import new_identity
from jobledger.workers.supervision.supervised import BEAT_S, IDENTITY, NOW, READY, STOP, Lines

logger = logging.getLogger("jobledger.workers.supervision.supervisor")

#: The exit code of a child whose configuration cannot work: another start would end the same.
CONFIGURATION_CODE: Final = 2
PROCESSES_MAX: Final = 256
_POLL_S: Final = 0.05
_IDENTITIES_MAX: Final = 4  #: of one child, the newest; older leases have expired
_GROUP_GONE_S: Final = 5.0
#: For processes that lead groups of their own and that the kernel kills when their worker dies, as those of a pool.
_LAST_BREATH_S: Final = 0.5
_LEASE_END_S: Final = 60.0
_LEASE_RETRY_S: Final = 0.5
_LAST_LEASES_S: Final = 5.0
_SILENCE_S_MIN: Final = 2 * BEAT_S


class SupervisorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes, and how long they may take."""

    processes: int = 1
    what: str = "worker process"  #: what each of them is called in the log
    grace_s: float = 30.0  #: how long running attempts may go on after a stop, as the children were told
    farewell_s: float = (
        20.0  #: after the grace, to give jobs back and exit, which takes a `Worker` at most 14 s
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

    def pause_s(self, deaths: int) -> float:
        """Return how long to wait after `deaths` deaths in a row, from 1 on."""
        return min(self.restart_s_max, self.restart_s_first * 2.0 ** min(deaths - 1, 30))


class Child:
    """One process under supervision, leader of a process group of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], supervisor: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the caller's own program
                    [*command, "--supervised", f"{supervisor}:{theirs.fileno()}"],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C reaches the supervisor alone, and the group can be ended as one
                )
            except BaseException:  # Ctrl-C, too: without a process nobody else closes our end
                ours.close()
                raise
        self._lines = Lines(ours)
        self.started_at = anyio.current_time()
        self.kill_at = math.inf
        self.identities: deque[str] = deque(maxlen=_IDENTITIES_MAX)
        self.heard_at = self.started_at
        self.is_ready = False
        self.is_replaced = False  #: it was asked to make room for a successor

    @property
    def pid(self) -> int:
        """The process id, which is also the number of its group."""
        return self._process.pid

    def hear(self) -> None:
        """Note what the child has told since the last call."""
        for line in self._lines.read():
            self.heard_at = anyio.current_time()
            word, _, name = line.partition(" ")
            if word == IDENTITY and name not in self.identities:
                self.identities.append(name)
            elif word == READY:
                self.is_ready = True

    def ask(self, word: str, limit_s: float) -> None:
        """Tell the child to stop; it may be killed after `limit_s`, or sooner if an earlier word allowed that."""
        self._lines.send(word)
        self.kill_at = min(self.kill_at, anyio.current_time() + limit_s)

    def kill(self) -> None:
        """Kill it and its process group. Only before `bury`: later the number may belong to another process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill_at = math.inf

    def has_ended(self) -> bool:
        """Return whether the process has ended; it is not reaped yet, so no other process gets its number."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll() is not None
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:  # another part of this program reaps every child
            return True

    def bury(self) -> int:
        """Kill what is left of its group, reap it, and return its exit code, negative for a signal."""
        self.kill()
        code = self._process.wait()
        self._lines.socket.close()
        return code

    async def group_gone(self) -> bool:
        """Wait until nothing of the buried child's group is left; return False if that takes too long."""
        with anyio.move_on_after(_GROUP_GONE_S):
            while True:
                if not _lives(self.pid):
                    return True
                await anyio.sleep(_POLL_S)
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
        self._children: set[Child] = set()
        self._stopping = anyio.Event()
        self._begun = anyio.Event()  # a child was ready, or there will be none
        self._changed = anyio.Event()
        self._code = 0
        self._endings: anyio.abc.TaskGroup | None = None

    def stop(self) -> None:
        """Ask the children to stop in good order; the second call stops them at once. Safe in a signal handler."""
        again = self._stopping.is_set()
        word, limit_s = (NOW, self._config.farewell_s) if again else (STOP, self._patience_s)
        self._stopping.set()
        self._begun.set()
        for child in self._children:
            child.ask(word, limit_s)

    def restart(self) -> None:
        """Replace every child, each as soon as it has stopped in good order."""
        self._changed.set()
        self._changed = anyio.Event()
        for child in self._children:
            child.is_replaced = True
            child.ask(STOP, self._patience_s)

    @property
    def _patience_s(self) -> float:
        return self._config.grace_s + self._config.farewell_s

    async def run(self) -> int:
        """Keep the children until stopped; return the exit code that tells how it went.

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
        deaths = 0
        environment = self._environment | dict(self._of_place(place) if self._of_place is not None else {})
        while not self._stopping.is_set():
            try:
                child = Child(self._command, environment, self.identity)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                logger.error("no process could be started: %s", error)  # noqa: TRY400 - a sentence
                deaths += 1
                await self._pause(deaths)
                continue
            code = await self._until_buried(child)
            if self._stopping.is_set():
                self._note_end(child, code)
            elif child.is_replaced:
                deaths = 0
            elif self._cannot_start(child, code):
                await self._give_up(code)
            else:
                lived_s = anyio.current_time() - child.started_at
                deaths = 1 if lived_s >= self._config.healthy_s else deaths + 1
                logger.warning(
                    "%s %d %s: another starts in %.1f s",
                    self._config.what,
                    child.pid,
                    how_ended(code),
                    self._config.pause_s(deaths),
                )
                await self._pause(deaths)

    async def _until_buried(self, child: Child) -> int:
        self._children.add(child)
        try:
            try:
                await self._until_ended(child)
            finally:
                if not child.has_ended():  # we are cancelled: the child is stopped in good order all the same
                    child.ask(STOP, self._patience_s)
                with anyio.CancelScope(shield=True):  # bounded by the patience
                    await self._until_ended(child)
        finally:
            self._children.discard(child)
            code = child.bury()
        assert self._endings is not None, "run made it"
        self._endings.start_soon(self._end_leases, child)
        return code

    async def _until_ended(self, child: Child) -> None:
        # Polls, because the child belongs to no event loop and another library may handle SIGCHLD.
        while not child.has_ended():
            self._hear(child)
            if anyio.current_time() >= child.kill_at:
                logger.error("%s %d did not stop in time: it is killed", self._config.what, child.pid)
                child.kill()
            elif self._is_silent(child):
                logger.error(
                    "worker process %d has not been heard of for %.0f s and its lease expired: it is killed. "
                    "A task may block its event loop: see its log",
                    child.pid,
                    self._config.silence_s,
                )
                child.kill()
                child.heard_at = math.inf
            await anyio.sleep(_POLL_S)
        self._hear(child)

    def _is_silent(self, child: Child) -> bool:
        """Whether its event loop is blocked. Asked only once it was ready: imports may block it for long."""
        limit_s = self._config.silence_s
        return limit_s is not None and child.is_ready and anyio.current_time() - child.heard_at >= limit_s

    def _hear(self, child: Child) -> None:
        child.hear()
        if child.is_ready:
            self._begun.set()

    async def _end_leases(self, child: Child) -> None:
        """End the leases of a child that is gone, so that its jobs are taken over at their next delivery."""
        if not await child.group_gone():
            logger.warning("a process that %d started does not end: its lease is left to expire", child.pid)
            return
        await anyio.sleep(_LAST_BREATH_S)
        with anyio.move_on_after(_LEASE_END_S):
            for identity in child.identities:
                while True:
                    try:
                        if await self._end_lease(identity):
                            logger.warning("worker %s is gone: its lease is ended", identity)
                        break
                    except LedgerError as error:
                        logger.info("lease of %s cannot be ended yet: %s", identity, error)
                        await anyio.sleep(_LEASE_RETRY_S)
                    except Exception:  # whatever it is: the lease expires, and other processes need care
                        logger.exception("lease of %s cannot be ended", identity)
                        break

    def _cannot_start(self, child: Child, code: int) -> bool:
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

    def _note_end(self, child: Child, code: int) -> None:
        if code != 0:
            logger.error("%s %d %s while it stopped", self._config.what, child.pid, how_ended(code))
            self._code = self._code or 1

    async def _pause(self, deaths: int) -> None:
        with anyio.move_on_after(self._config.pause_s(deaths)):
            await self._stopping.wait()

    async def _until_changed(self) -> None:
        async with anyio.create_task_group() as group:

            async def end_with(event: anyio.Event) -> None:
                await event.wait()
                group.cancel_scope.cancel()

            group.start_soon(end_with, self._changed)
            group.start_soon(end_with, self._stopping)


def how_ended(code: int) -> str:
    """Return an exit code as words."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"

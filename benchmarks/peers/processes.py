"""Processes that a measurement starts: with all they start themselves, their CPU, their memory, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from shared import cpu_s

_PARENT_DIED: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_STOP_S: Final = 5.0


def _end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2]
            children.setdefault(int(after_name.split()[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cpu_by_process(pids: Sequence[int]) -> dict[int, float]:
    """Return the CPU seconds so far of each process and of what descends from it."""
    return {each: cpu_s(each) for pid in pids for each in family(pid)}


def cpu_since(before: Mapping[int, float], pids: Sequence[int]) -> float:
    """Return the CPU seconds since `cpu_by_process`; those of a process that has ended meanwhile are lost."""
    return sum(max(0.0, now - before.get(pid, 0.0)) for pid, now in cpu_by_process(pids).items())


def memory_kib(pids: Sequence[int]) -> float:
    """Return the memory of processes and what descends from them; what several share counts once."""
    found = 0.0
    for each in {each for pid in pids for each in family(pid)}:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    found += int(line.split()[1])
    return found


class Child:
    """A process that was started here, and ends here."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    @classmethod
    async def start(
        cls,
        words: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str],
        folder: Path | None = None,
        user: str | None = None,
        is_asked: bool = False,
    ) -> Child:
        """Start it in a session of its own; `is_asked` gives it pipes for questions and answers."""
        pipe = asyncio.subprocess.PIPE if is_asked else asyncio.subprocess.DEVNULL
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=pipe,
                stdout=pipe if is_asked else errors,
                stderr=errors,
                cwd=folder,
                env=environment,
                user=user,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # it calls prctl and nothing else
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def last_words(self) -> str:
        """Return the last line that it said."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"

    async def stop(self, number: int = signal.SIGTERM, *, limit_s: float = _STOP_S) -> None:
        """End it in order; kill it, and all that it has started, if that takes longer than `limit_s`."""
        pids = family(self.pid)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), limit_s)
        await self.kill(pids)

    async def kill(self, pids: Sequence[int] = ()) -> None:
        """Kill it and all that it has started, at once."""
        if self.process.returncode is None:
            pids = family(self.pid)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self.process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it left behind in its session

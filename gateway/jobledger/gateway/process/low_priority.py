"""Low priority of a child process if processors are scarce, so that a process that answers requests runs at once.

On Linux three settings decide this, each only if the kernel has it. Other systems have `nice` alone.

- `nice`: the share of a processor beside others of its group.
- The nice value of its group. A process with a session of its own is weighed as a group, beside which its own nice value
  counts for nothing (sched(7), "The autogroup feature").
- The length of its turns. From Linux 6.12 on a process with shorter turns, when it wakes, ends a longer one at once. On
  others it may wait for the next tick of the clock, 4 ms with the usual kernels (sched_setattr(2), sched_runtime).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/self/autogroup")
#: Numbers of the system call sched_setattr: C libraries have a function for it only since 2025.
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
#: `struct sched_attr` in its first version: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_TURN_NS: Final = 100_000_000  #: longest turn that the kernel accepts


def step_back(nice: int) -> None:
    """Let others run first. `nice`: added to the nice value. Call it before the process has other threads."""
    now = os.nice(nice)
    if os.getsid(0) == os.getpid():  # else the session is shared, and the whole terminal would slow down
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(now), encoding="ascii")
    number = _SET_ATTRIBUTES.get(platform.machine())
    if platform.system() == "Linux" and number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, now, 0, _TURN_NS, 0, 0)
        # After a refusal of the kernel the length of turns stays as it is.
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)

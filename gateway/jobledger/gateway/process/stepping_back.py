"""How a child process steps back where processors are scarce: whoever answers a request need not wait for its turn to end.

Three things decide that on Linux, each only where the kernel has it; elsewhere `nice` is all:

- `nice`: the share of a processor beside others of its group.
- The nice value of its group. A process with a session of its own is weighed as a group, beside which its own nice value
  counts for nothing (sched(7), "The autogroup feature").
- The length of its turns. From Linux 6.12 on whoever asks for shorter ones may end a longer one at once; else a process
  that wakes may wait for the next tick of the clock, 4 ms with the usual kernels (sched_setattr(2), sched_runtime).
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
#: The numbers of the system call, which the C library has a name for since 2025 only.
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
#: `struct sched_attr` in its first version: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_TURN_NS: Final = 100_000_000  #: the longest that is taken


def step_back(nice: int) -> None:
    """Let others go first, by this much; for a process that starts with a session of its own, before it has threads."""
    now = os.nice(nice)
    if os.getsid(0) == os.getpid():  # else it would be the terminal's
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(now), encoding="ascii")
    number = _SET_ATTRIBUTES.get(platform.machine())
    if platform.system() == "Linux" and number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, now, 0, _TURN_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # what it refuses is left as it was

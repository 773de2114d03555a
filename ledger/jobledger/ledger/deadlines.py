"""A limit in time for many waits at once, by one timer for all of them.

`asyncio.timeout` makes a timer for each wait and takes it back, which costs every call of an application about 5 us. All
waits of one `Deadlines` may last equally long, so whichever began first ends first, and a timer for that one is enough.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

#: uvloop counts milliseconds: a timer may fire by so much too early, and one that is set for less fires at once.
_ROUNDED_S: Final = 0.001


class Deadlines:
    """Waits on one event loop that may each last `limit_s` seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, *, is_single: bool = False) -> None:
        """Begin no timer before the first wait. `is_single`: there is only one wait, and its end cancels the timer."""
        self.loop = loop
        self.limit_s = limit_s
        self._is_single = is_single
        self._waits: dict[Deadline, float] = {}  # by when each ends; the one that ends first is the first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wait: Deadline) -> None:
        """Count a wait as begun now."""
        ends_at = self._waits[wait] = self.loop.time() + self.limit_s
        if self._timer is None:
            self._timer = self.loop.call_at(ends_at, self._expire)

    def end(self, wait: Deadline) -> None:
        """Count a wait as over. Unless `is_single` the timer stays: when it fires, it finds the wait that is first."""
        self._waits.pop(wait, None)
        if self._is_single and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self.loop.time()
        for wait, ends_at in list(self._waits.items()):
            if ends_at > now + _ROUNDED_S:
                self._timer = self.loop.call_at(ends_at, self._expire)
                return
            del self._waits[wait]
            wait.expire()


class Deadline:
    """One wait: a block of code of one task, which is cancelled at the limit. Use it once, with `with`.

    Raises: TimeoutError at the end of a block that the limit cancelled. Other cancellations of the task go on.
    """

    __slots__ = ("_among", "_cancelling", "_task", "has_expired")

    def __init__(self, among: Deadlines) -> None:
        """`among`: the waits that it is one of, which know the limit."""
        self._among = among
        self.has_expired = False

    def __enter__(self) -> Self:
        """Begin, in the task that is to be cancelled."""
        task = asyncio.current_task(self._among.loop)
        assert task is not None, "a limit is for a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._among.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End. Raises: TimeoutError."""
        if not self.has_expired:
            self._among.end(self)
        # As `asyncio.timeout` does it: more cancels than ours are somebody else's, and go on.
        elif self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task: the limit is reached."""
        self.has_expired = True
        self._task.cancel()

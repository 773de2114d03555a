"""The access log: a line for each request, collected for a moment and written together."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from jobledger.ledger.logs.lines import Line

#: How long a line waits for others. A killed process loses the lines of this time.
_TOGETHER_S: Final = 0.05
_LINES_MAX: Final = 500
_log: Final = logging.getLogger("jobledger.gateway.access")


class AccessLog:
    """The lines that one process has not written yet; `close` writes them."""

    def __init__(self) -> None:
        """Begin without lines."""
        self._lines: list[Line] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_on(self) -> bool:
        """Whether the log is on: level INFO or lower."""
        return _log.isEnabledFor(logging.INFO)

    def add(self, fields: dict[str, str | int | float]) -> None:
        """Add a request that was answered: `method`, `path`, `status`, `ms`, `request` and `key`."""
        text = (
            f"{fields['method']} {fields['path']} {fields['status']} {fields['ms']} ms, "
            f"request {fields['request']}, key {fields['key']}"
        )
        self._lines.append(Line(time.time(), text, fields))
        if self._is_closed or len(self._lines) >= _LINES_MAX:
            self._write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOGETHER_S, self._write)

    def close(self) -> None:
        """Write the waiting lines; later lines are written at once."""
        self._is_closed = True
        self._write()

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            lines, self._lines = self._lines, []
            _log.info("%s", "\n".join(line.text for line in lines), extra={"lines": lines})

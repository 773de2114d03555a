"""The newest lines that the code of one attempt logged, up to a number of bytes; from any thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

import msgspec

from jobledger.ledger.nats.attempt_logs import LINE_BYTES_MAX, KeptLine

#: Bytes of JSON and of the bucket for a line, beside its text, its logger and its step.
_LINE_BYTES: Final = 48
_CUT: Final = "... (cut)"


class AttemptLog:
    """Lines of one attempt; without room for a new line the oldest ones go."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lines: deque[tuple[int, KeptLine]] = deque()  #: each with its size in bytes
        self._lock = threading.Lock()
        self.cut = 0  #: lines that were removed
        self._is_changed = False  #: whether a line came since `taken` was last called
        self.ended = False  #: whether the attempt has ended

    def add(self, line: KeptLine) -> bool:
        """Keep a line, with its text cut to the limit of a line; return whether it is the first since `taken`."""
        text = line.text.encode("utf-8", "replace")
        if len(text) > LINE_BYTES_MAX:
            text = text[:LINE_BYTES_MAX] + _CUT.encode()
        plain = text.decode("utf-8", "replace")
        line = KeptLine(at=line.at, level=line.level, logger=line.logger, step=line.step, text=plain)
        size = _LINE_BYTES + _json_bytes(plain) + _json_bytes(line.logger) + _json_bytes(line.step)
        with self._lock:
            self._lines.append((size, line))
            self._bytes += size
            while self._bytes > self._bytes_max and self._lines:
                gone, _ = self._lines.popleft()
                self._bytes -= gone
                self.cut += 1
            was_changed, self._is_changed = self._is_changed, True
        return not was_changed

    def taken(self) -> tuple[tuple[KeptLine, ...], int]:
        """Return the kept lines, and the number of removed older ones."""
        with self._lock:
            self._is_changed = False
            return tuple(line for _, line in self._lines), self.cut


def _json_bytes(text: str) -> int:
    return len(msgspec.json.encode(text))

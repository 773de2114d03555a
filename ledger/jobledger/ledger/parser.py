"""Taking messages out of what the server sent, faster than nats-py's parser, for subscriptions of our own.

Only whole messages for a handler made by `listen` are taken here; everything else (other verbs, other subscriptions,
messages that are long or malformed) is left to nats-py's parser, byte for byte. Source: ADR 004.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from nats.protocol.parser import AWAITING_CONTROL_LINE, MAX_CONTROL_LINE_SIZE, Parser

#: Called in the reader's task with subject, reply, data and raw headers: must be quick and must not raise.
Handler = Callable[[bytes, bytes, bytes, bytes], None]

#: What is kept of an incomplete message until the rest comes; a longer one is gathered by nats-py's parser.
_KEPT_BYTES_MAX: Final = 128 * 1024
_CRLF_BYTES: Final = 2
_PLAIN_WORDS: Final = (3, 4)  # subject, sid, [reply], size
_HEADED_WORDS: Final = (4, 5)  # subject, sid, [reply], header size, size


class Receiver(Protocol):
    """What is handed whole messages; besides it is nats-py's client, which its parser hands all the rest."""

    def deliver(self, handler: Handler, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Call the handler of a message; must not raise."""
        ...


class MessageParser(Parser):
    """nats-py's parser with a shortcut for whole messages.

    `handlers`: by subscription id, and not a copy: it is looked into for every message.
    """

    def __init__(self, receiver: Receiver, handlers: Mapping[int, Handler]) -> None:
        super().__init__(receiver)
        self._receiver = receiver
        self._handlers = handlers
        self._kept = b""

    def reset(self) -> None:
        """Begin anew, as after a reconnect."""
        super().reset()
        self._kept = b""

    async def parse(self, data: bytes = b"") -> None:
        """Hand on every whole message in `data` and what was kept of the data before."""
        if self.buf or self.state != AWAITING_CONTROL_LINE:
            await super().parse(data)
            return
        if self._kept:
            data, self._kept = self._kept + data, b""
        done = self._take(data)
        if done < len(data):
            rest = data[done:]
            if _may_be_ours(rest) and len(rest) < _KEPT_BYTES_MAX and self._needs_more(rest):
                self._kept = rest
            else:
                await super().parse(rest)

    def _take(self, data: bytes) -> int:
        """Hand on messages from the front as long as they are whole and ours; return how many bytes are done."""
        done, length = 0, len(data)
        find, handlers, deliver = data.find, self._handlers, self._receiver.deliver
        while done < length:
            first = data[done]
            if first == 77:  # noqa: PLR2004 - M, of MSG
                headed = False
            elif first == 72:  # noqa: PLR2004 - H, of HMSG
                headed = True
            else:
                break
            line_end = find(b"\r\n", done)
            if line_end < 0:
                break
            words = data[done:line_end].split()
            count = len(words) - 1
            if count not in (_HEADED_WORDS if headed else _PLAIN_WORDS) or not _is_verb(
                words[0], headed=headed
            ):
                break
            handler = handlers.get(int(words[2])) if words[2].isdigit() else None
            if handler is None or not words[-1].isdigit():
                break
            start = line_end + _CRLF_BYTES
            end = start + int(words[-1])
            if end + _CRLF_BYTES > length:
                break
            if headed:
                if not words[-2].isdigit():
                    break
                body = start + int(words[-2])
                reply = words[3] if count == _HEADED_WORDS[1] else b""
                deliver(handler, words[1], reply, data[body:end], data[start:body])
            else:
                reply = words[3] if count == _PLAIN_WORDS[1] else b""
                deliver(handler, words[1], reply, data[start:end], b"")
            done = end + _CRLF_BYTES
        return done

    def _needs_more(self, rest: bytes) -> bool:
        """Return whether `rest` is a message of ours that has not come whole."""
        line_end = rest.find(b"\r\n")
        if line_end < 0:
            return len(rest) < MAX_CONTROL_LINE_SIZE
        words = rest[:line_end].split()
        counts = _HEADED_WORDS if words[0] == b"HMSG" else _PLAIN_WORDS
        if len(words) - 1 not in counts or not (words[2].isdigit() and words[-1].isdigit()):
            return False
        size = int(words[-1])
        return int(words[2]) in self._handlers and size < _KEPT_BYTES_MAX


def _is_verb(word: bytes, *, headed: bool) -> bool:
    return word == (b"HMSG" if headed else b"MSG")


def _may_be_ours(rest: bytes) -> bool:
    return rest.startswith((b"MSG ", b"HMSG ")) or b"MSG ".startswith(rest) or b"HMSG ".startswith(rest)

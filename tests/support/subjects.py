"""Which subjects each role publishes to and subscribes to: recorded at the connection, compared with docs/subjects.md."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pytest

from jobledger.ledger.nats.connection import Connection

PAGE = Path(__file__).parents[2] / "docs" / "subjects.md"
#: Of the page: rows that every role has, and rows of which a single server sees nothing.
EVERYBODY = "Everybody"
ONLY_IN_A_CLUSTER = "In a cluster"

_ROW = re.compile(r"^\| (publish|subscribe) \| `([^`]+)` \| (.+) \|$")


class Use(NamedTuple):
    verb: str  # publish or subscribe
    subject: str


class Row(NamedTuple):
    role: str
    verb: str
    shape: str  # `<word>` stands for one token, a last `<words...>` for several
    why: str

    def fits(self, use: Use) -> bool:
        parts = re.split(r"<[^>]+>", self.shape)
        words = re.findall(r"<[^>]+>", self.shape)
        pattern = re.escape(parts[0])
        for word, part in zip(words, parts[1:], strict=True):
            pattern += (".+" if word.endswith("...>") else r"[^.*>]+") + re.escape(part)
        return use.verb == self.verb and re.fullmatch(pattern, use.subject) is not None


def rows() -> list[Row]:
    """Return the rows of the page."""
    found: list[Row] = []
    role = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            role = line.removeprefix("## ")
        elif (match := _ROW.match(line)) is not None:
            found.append(Row(role, *match.groups()))
    return found


class Recorder:
    """Notes what each connection sends, under the role that was played when the connection was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: dict[str, set[Use]] = {}
        self._role = "nobody"
        self._roles: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        made, sent, commanded = Connection.__init__, Connection.send, Connection._send_command

        def make(connection: Connection, *given: Any, **named: Any) -> None:
            made(connection, *given, **named)
            self._roles[connection] = self._role

        def send(connection: Connection, subject: str, reply: str, headers: bytes, data: bytes) -> None:
            self._note(connection, Use("publish", subject))
            sent(connection, subject, reply, headers, data)

        async def command(connection: Connection, cmd: bytes, priority: bool = False) -> None:
            words = cmd.partition(b"\r\n")[0].decode().split(" ")
            verb = {"PUB": "publish", "HPUB": "publish", "SUB": "subscribe"}.get(words[0])
            if verb is not None:
                self._note(connection, Use(verb, words[1]))
            await commanded(connection, cmd, priority)

        monkeypatch.setattr(Connection, "__init__", make)
        monkeypatch.setattr(Connection, "send", send)
        monkeypatch.setattr(Connection, "_send_command", command)

    def _note(self, connection: Connection, use: Use) -> None:
        self.used.setdefault(self._roles[connection], set()).add(use)

    @contextlib.contextmanager
    def playing(self, role: str) -> Generator[None, None, None]:
        """Count connections that are made in this block as the role's, for as long as they live."""
        before, self._role = self._role, role
        try:
            yield
        finally:
            self._role = before

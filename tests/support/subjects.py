"""Which subjects each role publishes to and subscribes to: recorded at the connection, compared with `admin.permissions`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import pytest

from jobledger.admin.permissions import PARTS, bound_to
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.nats.connection import Connection

#: Of the table: rows that every role has, and rows of which a single server sees nothing.
EVERYBODY = "Everybody"
ONLY_IN_A_CLUSTER = "In a cluster"
#: Of the reactors: what a worker of the queue of the ledger's own runs has.
REACTORS_TOO = "Reactors too"
_INBOX: Final = re.compile(r"^_INBOX_[A-Za-z0-9-]+\.")


class Use(NamedTuple):
    verb: str  # publish or subscribe
    subject: str


class Row(NamedTuple):
    role: str  # the title of its part
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
    return [Row(title, *right) for title, part in PARTS.items() for right in part.rights] + [
        Row(REACTORS_TOO, right.verb, bound, right.why)
        for right in PARTS["Worker"].rights
        for bound in bound_to(right.subject, (BUILT_IN_QUEUE,))
    ]


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
        """Note a use, without the name of the user that inboxes and leases have."""
        subject = _INBOX.sub("_INBOX.", use.subject)
        if connection.user:
            subject = subject.replace(f"$KV.WORKERS.{connection.user}.", "$KV.WORKERS.")
        use = Use(use.verb, subject)
        self.used.setdefault(self._roles[connection], set()).add(use)

    @contextlib.contextmanager
    def playing(self, role: str) -> Generator[None, None, None]:
        """Count connections that are made in this block as the role's, for as long as they live."""
        before, self._role = self._role, role
        try:
            yield
        finally:
            self._role = before

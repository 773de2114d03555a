"""One real server whose reads are answered as a cluster may answer them: by a replica that lags, by a leader deposed.

What a cluster does by chance, now and then for a millisecond, happens here to every read.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol, cast

import msgspec
import pytest

from jobledger.ledger import Ledger
from jobledger.ledger.nats import api, read_index
from jobledger.ledger.nats.inbox import Inbox, header
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.nats.read_index import ReadIndex

#: One answer in three is current; the other two are what was so before.
_LOOKS: Final = 3
_SECOND_NS: Final = 1_000_000_000
_NOTHING: Final = b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}'


class _Read(Protocol):
    def __call__(self, request: dict[str, Any], *, batch: bool) -> Awaitable[api.Batch]: ...


class _LaggingReplica:
    """Answers direct gets; what was appended it shows at its third look at the earliest."""

    def __init__(self, ledger: Ledger, read: _Read) -> None:
        self._ledger = ledger
        self._read = read
        self._shown = 0
        self._looks = 0

    async def __call__(self, request: dict[str, Any], *, batch: bool) -> api.Batch:
        found = await self._read(request, batch=batch)
        if not _has_proof(request):
            return found
        self._looks += 1
        if self._looks % _LOOKS == 0:
            stream = self._ledger.names.ledger_stream
            self._shown = (await api.stream_info(self._ledger.inbox, stream)).state.last_sequence
        shown = api.Batch(raw for raw in found if int(header(raw[1], b"Nats-Sequence")) <= self._shown)
        shown.up_to = min(found.up_to, self._shown)
        return shown


def _has_proof(request: dict[str, Any]) -> bool:
    """Return whether a read is one that has to be proven: all but that of which subjects are in use."""
    subjects = request.get("multi_last", ())
    return not subjects or ">" in subjects[0]


class _InboxOfDeposed(Inbox):
    """Answers for the stream's leader; two of three times it is one that others have replaced, with its past."""

    def __init__(self, inbox: Inbox, *, tells: bool) -> None:
        """`tells`: it has not heard of its replicas for long, as a leader that is cut off says."""
        self._asks = inbox
        self.connection = inbox.connection
        self._tells = tells
        self._calls = 0

    async def ask(self, subject: str, payload: object, *, timeout_s: float) -> tuple[bytes, bytes]:
        data, headers = await self._asks.ask(subject, payload, timeout_s=timeout_s)
        if ".STREAM.INFO." not in subject:  # of the newest message of a chain
            is_believed = not self._tells and self._calls % _LOOKS != 0
            return (_NOTHING if is_believed else data), headers
        self._calls += 1
        is_deposed = self._calls % _LOOKS != 0
        info = cast("dict[str, Any]", msgspec.json.decode(data))
        silent_s = 30.0 if is_deposed and self._tells else 0.1
        info["cluster"] = {
            "leader": "deposed" if is_deposed else "elected",
            "replicas": [{"name": name, "active": int(silent_s * _SECOND_NS)} for name in ("a", "b")],
        }
        if is_deposed:
            info["state"]["last_seq"] = max(0, info["state"]["last_seq"] - 1)
        return msgspec.json.encode(info), headers


def make_lag(ledger: Ledger) -> None:
    """Let reads of a ledger's chains be answered by a replica that lags."""
    log = _log(ledger)
    log._direct_get = _LaggingReplica(ledger, log._direct_get)  # type: ignore[method-assign]
    log._index = ReadIndex(ledger.inbox, ledger.names.ledger_stream, limit_s=30.0)


def depose_leader(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, tells: bool = True) -> None:
    """Let a ledger's reads be answered by a leader that others have replaced, and by replicas that lag as it does."""
    monkeypatch.setattr(read_index, "_RETRY_S", 0.001)
    make_lag(ledger)
    inbox = _InboxOfDeposed(ledger.inbox, tells=tells)
    _log(ledger)._index = ReadIndex(inbox, ledger.names.ledger_stream, limit_s=30.0)


def _log(ledger: Ledger) -> JetStreamLog:
    assert isinstance(ledger.log, JetStreamLog)
    return ledger.log

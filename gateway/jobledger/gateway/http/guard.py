"""The gate as a part of the application: it refuses a request, or notes in its scope who asks and hands it on.

It also ends answers that go on (streams of events) as soon as whoever asked for them is no longer let in.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobledger.gateway.access.gate import Gate, Pairs
from jobledger.gateway.access.identity import ADMITTED, CALLER, Admitted
from jobledger.gateway.http.routing import refusal, request_id_of
from jobledger.gateway.problems import ProblemError, code_of

_FAILED: Final = 500
#: After this time it is looked again whether who asked is still let in.
_SLOW_S: Final = 0.5


class Guard:
    """Stands before an application."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        """`app`: what lies behind the gate."""
        self._app = app
        self._gate = gate
        self._streams: dict[asyncio.Task[None], Admitted | None] = {}  #: None: it is being ended
        gate.on_sweep(self._sweep)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        added: Pairs = []
        try:
            arrived = self._gate.enter(scope, _headers(scope), added)
        except ProblemError as error:
            await _refuse(error, scope, receive, _adding(send, added))
            return
        if arrived is None:
            await _preflight(send, added)
            return
        scope["scheme"] = arrived.scheme
        if arrived.client != arrived.caller.peer:
            scope["client"] = (arrived.client, 0)
        scope[CALLER], scope[ADMITTED] = arrived.caller, arrived.who
        sending = _adding(send, added)
        if isinstance(arrived.who, Admitted):
            scope["jobledger.principal"] = arrived.who.principal
            await self._watched(arrived.who, scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    async def _watched(self, admitted: Admitted, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer whoever is let in, for as long as that holds.

        An answer that goes on ends, one that was waited for is not given, and of a body that goes on no more is taken.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        looked_at, is_refused = loop.time(), False

        def has_ended() -> bool:
            nonlocal looked_at
            now = loop.time()
            if now - looked_at <= _SLOW_S:
                return False
            looked_at = now
            return not self._gate.still(admitted)

        async def receiving() -> Message:
            message = await receive()
            if has_ended():
                raise _ended()
            return message

        async def sending(message: Message) -> None:
            nonlocal is_refused
            # That the server is silent is told as it is: nothing of the ledger's is in such an answer.
            may_be_kept = message["type"] == "http.response.start" and message["status"] < _FAILED
            if may_be_kept and has_ended():
                is_refused = True
                await _refuse(_ended(), scope, receive, send)
            if is_refused:
                return
            if message.get("more_body"):
                self._streams.setdefault(task, admitted)
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        except asyncio.CancelledError:
            if self._streams.get(task, admitted) is not None:
                raise  # somebody else's: the process stops, or the client is gone
            task.uncancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.pop(task, None)

    def _sweep(self) -> None:
        """End the answers that go on to those who are no longer let in."""
        for task, admitted in list(self._streams.items()):
            if admitted is not None and not self._gate.still(admitted):
                self._streams[task] = None
                task.cancel("the key ended")


async def _refuse(error: ProblemError, scope: Scope, receive: Receive, send: Send) -> None:
    scope["jobledger.code"] = code_of(error)
    await refusal(error, request_id_of(Request(scope)))(scope, receive, send)


def _ended() -> ProblemError:
    return ProblemError(
        "UNAUTHENTICATED", "who asked is no longer let in: the key or the session ended meanwhile"
    )


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; one that is said twice is joined, as lists are."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]}{'; ' if key == 'cookie' else ', '}{text}" if key in found else text
    return found


def _adding(send: Send, added: Pairs) -> Send:
    """Return what sends an answer with these headers too."""
    if not added:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            pairs = [(name.encode(), value.encode("latin-1")) for name, value in added]
            message = {**message, "headers": [*message.get("headers", ()), *pairs]}
        await send(message)

    return sending


async def _preflight(send: Send, added: Pairs) -> None:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in added]
    await send({"type": "http.response.start", "status": 204, "headers": pairs})
    await send({"type": "http.response.body", "body": b""})

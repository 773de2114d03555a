"""The gate as a part of the application: it refuses a request, or notes in its scope who asks and hands it on.

It also ends answers that go on (streams of events) as soon as whoever asked for them is no longer let in.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobledger.gateway.access.gate import Gate, Pairs
from jobledger.gateway.access.identity import ADMITTED, CALLER, Admitted
from jobledger.gateway.http.routing import refusal, request_id_of
from jobledger.gateway.problems import ProblemError, code_of


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
            scope["jobledger.code"] = code_of(error)
            await refusal(error, request_id_of(Request(scope)))(scope, receive, _adding(send, added))
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
        """Answer; an answer that goes on ends when whoever asked for it is no longer let in."""
        task = asyncio.current_task()
        assert task is not None

        async def sending(message: Message) -> None:
            if message.get("more_body"):
                self._streams.setdefault(task, admitted)
            await send(message)

        try:
            await self._app(scope, receive, sending)
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

"""The table of endpoints as an ASGI application: reads requests, calls handlers, and writes answers and refusals.

A handler knows nothing of HTTP: this module reads the request before it and writes the answer after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import JSON, Answer, Endpoint, Raw, StreamedAnswer
from jobledger.gateway.http.fields import fields_of
from jobledger.gateway.http.head import REQUEST_ID, headers_of, request_id_of
from jobledger.gateway.problems import MEDIA, Detail, ProblemError, broken_off, code_of, problem_of
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.marks import hidden_from, hide

# Addresses with words in braces, looked up by the parts of a path. Pure.

T = TypeVar("T")


class _Node(Generic[T]):
    def __init__(self) -> None:
        self.words: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None
        self.value: T | None = None
        self.names: list[str] = []


class Addresses(Generic[T]):
    """A value for each address, as `/v1/jobs/{queue}/{id}`; if several addresses match, words come before braces."""

    def __init__(self) -> None:
        """Begin without addresses."""
        self._root: _Node[T] = _Node()

    def add(self, path: str, value: T) -> None:
        """Put a value at a free address."""
        node, names = self._root, []
        for part in path.split("/"):
            if part.startswith("{"):
                names.append(part[1:-1])
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.words.setdefault(part, _Node())
        assert node.value is None, f"{path} is there already"
        node.value, node.names = value, names

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return the value at the address of a path, and the parts that stand for braces; None without an address."""
        parts = path.split("/")
        node, depth = self._root, 0
        taken: tuple[str, ...] = ()
        # If a word and braces both match, the braces are tried after the word. An entry: the node, the depth behind it,
        # and the parts that stand for braces so far.
        others: list[tuple[_Node[T], int, tuple[str, ...]]] = []
        while True:
            if depth < len(parts):
                part = parts[depth]
                depth += 1
                word, other = node.words.get(part), node.any if part else None
                if word is not None:
                    if other is not None:
                        others.append((other, depth, (*taken, part)))
                    node = word
                    continue
                if other is not None:
                    node, taken = other, (*taken, part)
                    continue
            elif node.value is not None:
                return node.value, dict(zip(node.names, taken, strict=True))
            if not others:
                return None
            node, depth, taken = others.pop()


Handler = Callable[[Request], Awaitable[Response]]

#: The principal of a request to a public endpoint.
_NOBODY: Final = Principal(name="nobody", permissions=frozenset())
_TAKEN_WITHIN_S: Final = 30.0
_PAST: Final = ("at", "sequence")
_REQUEST_ID: Final = REQUEST_ID.encode()
_JSON_TYPE: Final = JSON.encode()
_log = logging.getLogger("jobledger.gateway")
_encode: Final = msgspec.json.Encoder().encode


class Table:
    """Answers requests to the addresses of the table, and hands all others to another application.

    The API is not routed by Starlette, whose layers cost a request more than most handlers do.
    """

    def __init__(self, gateway: Gateway, endpoints: Iterable[Endpoint], otherwise: ASGIApp) -> None:
        """`otherwise`: the application for all other addresses."""
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            methods = by_path.setdefault(endpoint.path, {})
            assert endpoint.method not in methods, f"{endpoint.method} {endpoint.path} is declared twice"
            methods[endpoint.method] = endpoint
        self._addresses: Addresses[_Address] = Addresses()
        for path, methods in by_path.items():
            self._addresses.add(path, _Address(gateway, path, methods))
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        found = self._addresses.find(path)
        if found is not None:
            address, scope["path_params"] = found
            scope["route"] = address
            response = await address.answer(Request(scope, receive, send))
            await response(scope, receive, send)
        elif path.endswith("/") and self._addresses.find(path.rstrip("/")) is not None:
            there = URL(scope={**scope, "path": path.rstrip("/")})
            await RedirectResponse(str(there))(scope, receive, send)
        else:
            await self._otherwise(scope, receive, send)


class _Address:
    """One address of the table, with the endpoints of its methods."""

    def __init__(self, gateway: Gateway, path: str, endpoints: Mapping[str, Endpoint]) -> None:
        self.path = path  #: as it is declared
        self._handlers = {method: _handler(gateway, endpoint) for method, endpoint in endpoints.items()}
        if "GET" in endpoints and endpoints["GET"].has_head:
            self._handlers["HEAD"] = self._handlers["GET"]

    async def answer(self, request: Request) -> Response:
        """Return the answer; refusals have the same form for every method."""
        scope = request.scope
        request_id = request_id_of(scope)
        try:
            handler = self._handlers.get(scope["method"])
            if handler is None:
                raise self._not_taken(request.method)  # noqa: TRY301 - one way out
            response = await handler(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer says what happened and the server goes on
            scope["jobledger.code"] = code_of(error)
            return refusal(error, request_id)
        response.raw_headers.append((_REQUEST_ID, request_id.encode()))
        return response

    def _not_taken(self, method: str) -> ProblemError:
        allowed = ", ".join(sorted(self._handlers))
        sentence = f"{method[:20]} is not answered here: this address takes {allowed}"
        return ProblemError("METHOD_NOT_ALLOWED", sentence, headers={"allow": allowed})


def _handler(gateway: Gateway, endpoint: Endpoint) -> Handler:
    read_query = _query_reader(endpoint.query)
    read_body = None if endpoint.body is None else msgspec.json.Decoder(endpoint.body).decode
    needs_body = endpoint.needs_body

    async def handle(request: Request) -> Response:
        principal = _NOBODY if endpoint.public else gateway.access.principal(request)
        request.scope["jobledger.principal"] = principal
        if endpoint.permission is not None and not endpoint.public:
            principal.require(endpoint.permission)
        asked = ApiRequest(gateway, request, principal, request_id_of(request.scope), endpoint.heeds)
        given: dict[str, Any] = dict(request.scope["path_params"])
        query = read_query(request)
        if query is not None:
            given["query"] = query
        if read_body is not None:
            asked.sent = await _body_of(request, endpoint.takes, needs_body=needs_body)
            given["body"] = _read(read_body, asked.sent, "the body")
        with acting_for(None if endpoint.public else asked.authority):
            value = await endpoint.handler(asked, **given)
        return _response(value, endpoint, asked)

    return handle


async def _body_of(request: Request, takes: str, *, needs_body: bool) -> bytes:
    """Read the body; where no body is needed, a missing one is an empty object. Raises: ProblemError."""
    kind = headers_of(request.scope).get("content-type", "").partition(";")[0].strip().lower()
    if kind != takes and (kind or needs_body):
        what = f"Content-Type is {kind[:80]!r}" if kind else "the request has no Content-Type"
        raise ProblemError("BAD_REQUEST", f"{what}: send {takes}")
    parts: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise broken_off()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    data = b"".join(parts)
    if data and not kind:
        raise ProblemError("BAD_REQUEST", f"the body has no Content-Type: send {takes}")
    return data if data or needs_body else b"{}"


def _read(decode: Callable[[bytes], Any], data: bytes, what: str) -> Any:
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at `")
        details = (Detail(path=path.rstrip("`") or "$", detail=sentence),)
        raise ProblemError("BAD_REQUEST", f"{what} is not as it must be: {error}", errors=details) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError("BAD_REQUEST", f"{what} is not JSON: {error}") from error


def _query_reader(kind: type[msgspec.Struct] | None) -> Callable[[Request], msgspec.Struct | None]:
    """Return a reader of the parameters behind the `?`: each may occur once, except lists; unknown ones are refused."""
    fields = {} if kind is None else {each.encode_name: each for each in fields_of(kind)}
    many = {name for name, each in fields.items() if _is_many(each.type)}
    has_default = kind is not None and not any(each.required for each in fields.values())
    default = kind() if kind is not None and has_default else None

    def read(request: Request) -> msgspec.Struct | None:
        has_any = bool(request.scope["query_string"])
        if not has_any and (kind is None or has_default):
            return default
        values: dict[str, Any] = {}
        for name, value in request.query_params.multi_items() if has_any else ():
            if name not in fields:
                raise _unknown(name, fields)
            if name in many:
                values.setdefault(name, []).append(value)
            elif name in values:
                raise ProblemError("BAD_REQUEST", f"the parameter {name} is given twice: give it once")
            else:
                values[name] = value
        if kind is None:
            return None
        return cast(
            "msgspec.Struct",
            _read(lambda _: msgspec.convert(values, kind, strict=False), b"", "the query"),
        )

    return read


def _is_many(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) in {list, tuple}


def _unknown(name: str, fields: Iterable[str]) -> ProblemError:
    if name in _PAST:
        return ProblemError(
            "NO_PAST", f"{name}: this answer is not computed from the ledger, so it has no past"
        )
    known = ", ".join(sorted(fields)) or "none"
    return ProblemError("BAD_REQUEST", f"there is no parameter {name[:80]!r} here: known are {known}")


def _response(result: Any, endpoint: Endpoint, asked: ApiRequest) -> Response:
    if isinstance(result, Response):
        return result
    if isinstance(result, Raw):
        return Response(result.data, result.status, dict(result.headers), result.media)
    if isinstance(result, StreamedAnswer):
        return _TimedStream(result.parts, endpoint.status, dict(result.headers), result.media)
    answer = result if isinstance(result, Answer) else Answer(value=result)
    headers = dict(answer.headers)
    if answer.etag is not None:
        headers["etag"] = f'"{answer.etag}"'
        if endpoint.method == "GET" and asked.has(answer.etag):
            return Response(b"", 304, headers)
    status = endpoint.status if answer.status is None else answer.status
    if answer.value is None and (endpoint.returns is None or status == HTTPStatus.NO_CONTENT):
        return Response(b"", status, headers)
    return _Json(_encode(hide(answer.value, hidden_from(asked.principal))), status, headers)


class _Json(Response):
    """JSON text as the body of an answer, with the headers that Starlette's own class gives it."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str]) -> None:
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = [
            (name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()
        ]
        self.raw_headers += (
            (b"content-length", str(len(body)).encode()),
            (b"content-type", _JSON_TYPE),
        )


class _TimedStream(StreamingResponse):
    """A stream whose reader must take each part in time: else the connection ends."""

    async def stream_response(self, send: Send) -> None:
        """Send the parts. Raises: TimeoutError, which ends the connection."""

        async def in_time(message: MutableMapping[str, Any]) -> None:
            async with asyncio.timeout(_TAKEN_WITHIN_S):
                await send(message)

        try:
            await super().stream_response(in_time)
        finally:  # if the reader left, free the stream's resources at once
            if isinstance(self.body_iterator, AsyncGenerator):
                await self.body_iterator.aclose()


def refusal(error: Exception, request_id: str) -> Response:
    """Return the answer to a request that was not done; an unexpected error is logged with its traceback."""
    problem, headers = problem_of(error, request_id)
    if code_of(error) == "INTERNAL":
        _log.error("request %s failed", request_id, exc_info=error)
    headers[REQUEST_ID] = request_id
    return Response(_encode(problem), problem.status, headers, MEDIA)

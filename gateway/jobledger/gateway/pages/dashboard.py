"""Pages as routes: identifies viewers, shares renderings, checks the token of forms, and shows refusals as pages."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from datetime import datetime
from functools import partial
from typing import Final
from urllib.parse import quote, unquote

import msgspec
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from jobledger.gateway.events.sse import primed
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.fields import fields_of
from jobledger.gateway.http.head import request_id_of
from jobledger.gateway.pages.html import STATIC, address, carrying, rendered
from jobledger.gateway.pages.memo import Memo
from jobledger.gateway.pages.page import Elsewhere, Fields, Form, OwnPage, Page, SentForm, Viewer, When
from jobledger.gateway.pages.parameters import read_form, read_query
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.gateway.pages.views.levels import levels
from jobledger.gateway.pages.words import instant
from jobledger.gateway.problems import Problem, ProblemError, problem_of
from jobledger.gateway.shares import opened
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.marks import hidden_from, hide
from jobledger.ledger.model.written_times import read_relative_time
from jobledger.projections import ProjectionError

# Live pages: one read of the rows' position serves all listeners.

LOOK_S: Final = 0.75  #: pause between two reads of the position
BEAT_S: Final = 15.0  #: pause between empty lines, so that proxies keep the stream
RETRY_MS: Final = 2000  #: pause before a browser connects again


class _Pulse:
    """Follows the position of the rows while somebody listens."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listeners: set[asyncio.Queue[int]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._position = 0

    @property
    def position(self) -> int:
        """The position that was sent last; 0 before anybody listened."""
        return self._position

    async def beats(self) -> AsyncGenerator[bytes, None]:
        """Give server-sent events, one for each new position. Raises: ProblemError (SHARE_USED, BUSY), at the first."""
        with opened("streams"):
            async with contextlib.aclosing(self._beats()) as beats:
                async for each in beats:
                    yield each

    async def _beats(self) -> AsyncGenerator[bytes, None]:
        life, heard = self._gateway.life, asyncio.Queue[int](maxsize=1)
        self._listeners.add(heard)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            if self._position:
                yield _event(self._position)
            while not life.stopping.is_set():
                said = b": here\n\n"
                with life.waiting(BEAT_S):
                    said = _event(await heard.get())
                yield said
        finally:
            self._listeners.discard(heard)

    async def _look(self) -> None:
        """Give each new position to every listener; it replaces a position that the listener has not taken."""
        while self._listeners and not self._gateway.life.stopping.is_set():
            with contextlib.suppress(LedgerError, ProjectionError):
                async with self._gateway.projection.opened() as view:
                    position = view.store.position().stream_sequence
                if position != self._position:
                    self._position = position
                    for each in self._listeners:
                        _put_newest(each, position)
            await asyncio.sleep(LOOK_S)


def _put_newest(queue: asyncio.Queue[int], position: int) -> None:
    with contextlib.suppress(asyncio.QueueEmpty):
        queue.get_nowait()
    queue.put_nowait(position)


def _event(position: int) -> bytes:
    return f"id: {position}\nevent: advanced\ndata: {position}\n\n".encode()


# Shared renderings: a page is rendered again when it is old, and never twice at once.

FRESH_S: Final = 1.5  #: a page that is older than this is rendered again
KEPT_MAX: Final = 64


class _RenderTask(msgspec.Struct, kw_only=True):
    task: asyncio.Task[bytes]
    at: float  #: beginning, by the monotonic clock


class SharedPages:
    """The newest renderings, by a key of all that they depend on."""

    def __init__(self, clock: Clock, *, fresh_s: float = FRESH_S) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._made: OrderedDict[Hashable, _RenderTask] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the rendering for a key: a fresh one, one under way, or a new one.

        A viewer that leaves does not cancel it for the others. Raises: what `make` raises.
        """
        known = self._made.get(key)
        if known is None or self._is_over(known):
            known = _RenderTask(task=asyncio.create_task(_begun(make)), at=self._clock.monotonic())
            self._made[key] = known
            while len(self._made) > KEPT_MAX:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return await asyncio.shield(known.task)

    def forget(self) -> None:
        """Drop every rendering, because somebody has changed something."""
        self._made.clear()

    def _is_over(self, made: _RenderTask) -> bool:
        if not made.task.done():
            return False
        failed = made.task.cancelled() or made.task.exception() is not None
        return failed or self._clock.monotonic() - made.at >= self._fresh_s


async def _begun(make: Callable[[], Awaitable[bytes]]) -> bytes:
    return await make()


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
FORM_BYTES_MAX: Final = 2 << 20
_FIELDS_MAX: Final = 2_000
_STREAM: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_EVENTS: Final = "text/event-stream"
NOT_FOUND: Final = 404
_HTML: Final = "text/html; charset=utf-8"
_LOGIN: Final = "/login"
_PLACES: Final = {"at", "sequence", "range", "cursor", "top", "path"}
_GO: Final = b"\0go "  #: prefix of a redirect, which takes the place of a page
_WAY_OUT: Final = Markup(
    '<form method="post" action="/logout"><input type="hidden" name="token" value="{token}"> '
    '<button type="submit">Log out</button></form>'
)
_log = logging.getLogger("jobledger.gateway")


def _assets() -> dict[str, str]:
    """Return the addresses of our files, which change with the files' content."""
    return {
        path.name: f"/static/{path.name}?v={hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
        for path in sorted(STATIC.iterdir())
    }


ASSETS: Final = _assets()
Handler = Callable[[Request], Awaitable[Response]]


def answered(handler: Handler, refusal: Callable[[Request, Exception], Response]) -> Handler:
    """Return a handler whose refusals are pages, and whose answers have the headers of one."""

    async def answer(request: Request) -> Response:
        try:
            response = await handler(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says what happened and the server goes on
            response = refusal(request, error)
        response.headers.update(HEADERS)
        return response

    return answer


class Dashboard:
    """The pages of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        """Read nothing until somebody opens a page."""
        self._gateway = gateway
        self._shared = SharedPages(gateway.ledger.clock)
        self._pulse = _Pulse(gateway)
        self._kept = Memo(gateway.ledger.clock)
        # Viewers with the same rights share a rendering, so a person's own parts are inserted when it is sent.
        self._name_mark, self._token_mark = (f"~{secrets.token_hex(16)}~" for _ in range(2))

    def routes(self) -> list[BaseRoute]:
        """Return a route for each page and form."""
        pages = [self._route(each.path, partial(self._page, page=each)) for each in PAGES]
        forms = [self._route(each.path, partial(self._form, form=each), "POST") for each in FORMS]
        more = [self._route("/live", self._live), self._route("/levels", self._levels)]
        return [*pages, *forms, *more, Mount("/static", StaticFiles(directory=STATIC))]

    def _route(self, path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, answered(handler, self._refusal), methods=[method])

    async def _page(self, request: Request, page: Page) -> Response:
        principal = self._gateway.access.principal(request)
        if page.permission is not None:
            principal.require(page.permission)
        query = read_query(page.query, request.query_params.multi_items())
        when = query if isinstance(query, When) else When()
        if when.at and (at := _absolute(when.at, self._gateway.ledger.clock.now())) is not None:
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "at"]
            return RedirectResponse(address(request.url.path, [*rest, ("at", instant(at))]), 303)
        known = {field.encode_name for field in fields_of(page.query)} - _PLACES
        asked = tuple(
            (name, value) for name, value in request.query_params.multi_items() if name in known and value
        )
        looked = Viewer(self._gateway, principal, request.url.path, self._kept, when, asked)
        scope = (principal.permissions, principal.queues, principal.tasks)

        async def make() -> bytes:
            facts = await page.facts(looked, **request.path_params, query=query)
            if isinstance(facts, Elsewhere):
                return _GO + facts.address.encode()
            told = facts if isinstance(facts, OwnPage) else OwnPage(page.template, facts)
            return self._rendered(told, principal)

        stands_at = 0 if page.stands_at is None else await page.stands_at(looked, **request.path_params)
        # The key contains the position: after a new position, no page gets a rendering that began before it.
        made = await self._shared.get((request.url.path, query, scope, self._pulse.position, stands_at), make)
        if made.startswith(_GO):
            return RedirectResponse(made.removeprefix(_GO).decode(), 303)
        return Response(self._personal(made, principal, request), media_type=_HTML)

    def _rendered(self, told: OwnPage, principal: Principal) -> bytes:
        marks = {"name": self._name_mark, "token": self._token_mark}
        shown = hide(told.facts, hidden_from(principal))
        facts = {"shell": shown.shell, "page": shown, "marks": marks, "assets": ASSETS}
        return rendered(told.template, facts)

    def _personal(self, made: bytes, principal: Principal, request: Request) -> bytes:
        """Insert a person's own parts: the name, a log-out button if there is a session, and the token of forms."""
        access = self._gateway.access
        name, token = escape(principal.name), access.form_token(request)
        if access.can_log_out(request):
            name += _WAY_OUT.format(token=token)
        named = made.replace(self._name_mark.encode(), str(name).encode())
        return named.replace(self._token_mark.encode(), token.encode())

    async def _form(self, request: Request, form: Form) -> Response:
        principal = self._gateway.access.principal(request)
        fields = Fields(await read_form(request, bytes_max=FORM_BYTES_MAX, fields_max=_FIELDS_MAX))
        if not hmac.compare_digest(
            fields.one("token").encode(), self._gateway.access.form_token(request).encode()
        ):
            raise ProblemError(
                "JOB_ACCESS_DENIED",
                "the form is from another session: load the page again and send it once more",
            )
        if form.permission is not None:
            principal.require(form.permission)
        when = read_query(When, request.query_params.multi_items())
        looked = Viewer(self._gateway, principal, request.url.path, self._kept, when)
        with acting_for(principal):
            answer = await form.act(SentForm(self._gateway, principal, fields, looked), **request.path_params)
        self._shared.forget()
        self._kept.forget()
        if isinstance(answer, str):
            return RedirectResponse(carrying(answer, when.named()), 303)
        made = self._rendered(answer, principal)
        return Response(self._personal(made, principal, request), media_type=_HTML)

    async def _live(self, request: Request) -> Response:
        self._gateway.access.principal(request).require("view")
        if request.method == "HEAD":  # HEAD has no body, so no stream begins
            return Response(media_type=_EVENTS, headers=_STREAM)
        return StreamingResponse(await primed(self._pulse.beats()), media_type=_EVENTS, headers=_STREAM)

    async def _levels(self, request: Request) -> Response:
        principal = self._gateway.access.principal(request)
        principal.require("view")
        looked = Viewer(self._gateway, principal, request.url.path, self._kept)

        async def make() -> bytes:
            return msgspec.json.encode(await levels(looked))

        made = await self._shared.get(("/levels", principal.queues, principal.tasks), make)
        return Response(made, media_type="application/json")

    def _refusal(self, request: Request, error: Exception) -> Response:
        request_id = request_id_of(request.scope)
        problem, headers = problem_of(error, request_id, said=str)  # pages keep the commands in sentences
        if problem.code == "UNAUTHENTICATED" and request.url.path != "/live":
            here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            after = quote(here if request.method == "GET" else _back(request))
            return RedirectResponse(f"{_LOGIN}?after={after}", 303)
        if problem.code == "INTERNAL":
            _log.error("request %s failed", request_id, exc_info=error)
        return problem_page(request, problem, headers)


def problem_page(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem as a page, with a field to search for the right thing."""
    meant = request.url.path.rpartition("/")[2] if problem.status == NOT_FOUND else ""
    facts = {"problem": problem, "back": _back(request), "guess": unquote(meant)[:100], "assets": ASSETS}
    return Response(rendered("problem.html", facts), problem.status, headers, _HTML)


def _absolute(text: str, now: datetime) -> datetime | None:
    """Return the moment of a relative time such as `2h`, whose meaning changes with time; None for a full date."""
    try:
        return read_relative_time(text, now)
    except OverflowError:
        return None


def _back(request: Request) -> str:
    """Return the page of the dashboard that a person came from."""
    came = request.headers.get("referer", "").partition("://")[2]
    host, _, path = came.partition("/")
    return f"/{path}" if host and host == request.headers.get("host") and not path.startswith("/") else "/"

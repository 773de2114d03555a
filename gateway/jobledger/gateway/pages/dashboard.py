"""Pages as routes: identifies viewers, shares renderings, checks the token of forms, and shows refusals as pages."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
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
from jobledger.gateway.http.fields import fields_of
from jobledger.gateway.http.head import request_id_of
from jobledger.gateway.pages.html import STATIC, address, carrying, rendered
from jobledger.gateway.pages.kept import Memo
from jobledger.gateway.pages.live import Pulse
from jobledger.gateway.pages.page import Elsewhere, Fields, Form, OwnPage, Page, SentForm, Viewer, When
from jobledger.gateway.pages.parameters import read_form, read_query
from jobledger.gateway.pages.shared import SharedPages
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.gateway.pages.views.levels import levels
from jobledger.gateway.pages.words import instant
from jobledger.gateway.parts import Gateway
from jobledger.gateway.problems import Problem, ProblemError, problem_of
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.marks import hidden_from, hide
from jobledger.ledger.model.written_times import read_relative_time

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
_GO: Final = b"\0go "  #: begins a redirect in place of a page
_WAY_OUT: Final = Markup(
    '<form method="post" action="/logout"><input type="hidden" name="token" value="{token}"> '
    '<button type="submit">Log out</button></form>'
)
_log = logging.getLogger("jobledger.gateway")


def _assets() -> dict[str, str]:
    """Return the addresses of our files, which change with what is in them."""
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
        """Nothing is read until somebody looks."""
        self._gateway = gateway
        self._shared = SharedPages(gateway.ledger.clock)
        self._pulse = Pulse(gateway)
        self._kept = Memo(gateway.ledger.clock)
        # Viewers with the same rights share a rendering, so a person's own parts are put in when it is sent.
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
        # The key has the position: after a new one, no page gets a rendering that began before it.
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
        """Put in a person's own parts: the name, a log-out button where there is a session, and the token of forms."""
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
        if request.method == "HEAD":  # nobody would read a stream
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
    """Return a problem as a page, with a search for what was meant."""
    meant = request.url.path.rpartition("/")[2] if problem.status == NOT_FOUND else ""
    facts = {"problem": problem, "back": _back(request), "guess": unquote(meant)[:100], "assets": ASSETS}
    return Response(rendered("problem.html", facts), problem.status, headers, _HTML)


def _absolute(text: str, now: datetime) -> datetime | None:
    """Return the moment of a relative time such as `2h`, which means another moment later; None for a full date."""
    try:
        return read_relative_time(text, now)
    except OverflowError:
        return None


def _back(request: Request) -> str:
    """Return the page of ours that somebody came from."""
    came = request.headers.get("referer", "").partition("://")[2]
    host, _, path = came.partition("/")
    return f"/{path}" if host and host == request.headers.get("host") and not path.startswith("/") else "/"

"""Logging in and out in a browser: with a typed key, with a link for one use, or with the account's address.

A form redeems a link, not the opening of its address: programs that open addresses beforehand, such as those that scan
mail, must not use it up. The address that a gateway prints for its own account contains that account's key: it may be
opened often, and redirects at once to an address without the key.
"""

from __future__ import annotations

import hmac
import logging
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jobledger.gateway.access.keys import KeyAccess
from jobledger.gateway.http.head import request_id_of
from jobledger.gateway.pages.dashboard import ASSETS, Handler, answered
from jobledger.gateway.pages.html import rendered
from jobledger.gateway.pages.parameters import read_form
from jobledger.gateway.problems import ProblemError, problem_of
from jobledger.ledger.model.errors import LedgerError

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
_BY_PROVIDER: Final = "/login/oidc"
_BACK: Final = "/login/oidc/callback"
_PASSING: Final = "oidc"
_PASSING_S: Final = 600
_FORM_BYTES_MAX: Final = 16 << 10
_LINK_MAX: Final = 200
_log = logging.getLogger("jobledger.gateway")


class Login:
    """The pages of logging in and out."""

    def __init__(self, access: KeyAccess) -> None:
        """`access`: the access control of the gateway."""
        self._access = access

    def routes(self) -> list[Route]:
        """Return their routes."""
        there: list[tuple[str, Handler, str]] = [
            (LOGIN, self._show, "GET"),
            (LOGIN, self._log_in, "POST"),
            (LOGOUT, self._log_out, "POST"),
        ]
        if self._access.provider is not None:
            there += [(_BY_PROVIDER, self._go, "GET"), (_BACK, self._come_back, "GET")]
        return [Route(path, answered(do, self._refusal), methods=[method]) for path, do, method in there]

    def _refusal(self, request: Request, error: Exception) -> Response:
        problem, headers = problem_of(error, request_id_of(request.scope))
        request.scope["jobledger.code"] = problem.code
        if problem.code == "INTERNAL":
            _log.error("request %s failed", problem.request_id, exc_info=error)
        headers.pop("www-authenticate", None)  # a browser would show its own dialog for a password
        return self._page(request, problem.detail, problem.status, headers)

    async def _show(self, request: Request) -> Response:
        access = self._access
        if access.provider is not None and access.unsure(access.caller(request)) is not None:
            after = inside(request.query_params.get("after", ""))
            return RedirectResponse(f"{_BY_PROVIDER}?{urlencode({'after': after})}", 303)
        if token := request.query_params.get("token", ""):
            return self._enter(request, token)
        return self._page(request)

    def _enter(self, request: Request, token: str) -> Response:
        access = self._access
        access.count_login(_client(request))
        cookie = access.enter(token, secure=access.caller(request).secure)
        return RedirectResponse("/", 303, {"set-cookie": cookie})

    def _page(
        self, request: Request, problem: str = "", status: int = 200, headers: dict[str, str] | None = None
    ) -> Response:
        given = request.query_params
        after, link = inside(given.get("after", "")), given.get("link", "")[:_LINK_MAX]
        query = urlencode({"after": after})
        name = "" if self._access.provider is None else self._access.provider.name
        facts = {
            "problem": problem,
            "after": after,
            "link": link,
            "query": query,
            "provider": name,
            "is_account": self._access.takes_account,
            "assets": ASSETS,
        }
        return Response(rendered("login.html", facts), status, headers, "text/html; charset=utf-8")

    async def _log_in(self, request: Request) -> Response:
        access, caller = self._access, self._access.caller(request)
        access.count_login(_client(request))
        fields = await _fields(request)
        link = fields.get("link", "")
        # Somebody may paste the whole header from the account's file, with words before the key.
        cookie = (
            await access.redeem(link, secure=caller.secure)
            if link
            else access.log_in(fields.get("key", "").strip().rpartition(" ")[2], secure=caller.secure)
        )
        return RedirectResponse(inside(fields.get("after", "")), 303, {"set-cookie": cookie})

    async def _go(self, request: Request) -> Response:
        """Send a browser to the provider; a person with a session here is confirmed without a question."""
        access, provider = self._access, self._access.provider
        assert provider is not None
        caller = access.caller(request)
        address, passing = await provider.begin(_back(request), silently=access.unsure(caller) is not None)
        passing["after"] = inside(request.query_params.get("after", ""))
        secure = caller.secure
        cookie = access.sessions.passing(_PASSING, passing, _PASSING_S, secure=secure)
        return RedirectResponse(address, 303, {"set-cookie": cookie})

    async def _come_back(self, request: Request) -> Response:
        """Let in a person who comes back from the provider with a code, in the browser that was sent there."""
        access, caller, provider = self._access, self._access.caller(request), self._access.provider
        assert provider is not None
        access.count_login(_client(request))
        given, secure = request.query_params, caller.secure
        passed = access.sessions.passed(caller.headers.get("cookie", ""), _PASSING, _PASSING_S, secure=secure)
        if not passed or not hmac.compare_digest(
            given.get("state", "").encode(), str(passed["state"]).encode()
        ):
            raise ProblemError(
                "UNAUTHENTICATED", "this log-in was not begun in this browser, or too long ago: log in again"
            )
        before = access.unsure(caller)
        try:
            person = await provider.finish(_code(request), _back(request), passed)
            same = before if before is not None and before.user == person.user else None
            cookie = access.open_person(person.user, person.groups, same, secure=secure)
        except ProblemError as error:
            if before is not None and error.code == "UNAUTHENTICATED":
                await access.end_session(before, by="provider")
            raise
        response = RedirectResponse(str(passed["after"]), 303)
        response.headers.append("set-cookie", cookie)
        response.headers.append("set-cookie", access.sessions.passing(_PASSING, {}, 0, secure=secure))
        return response

    async def _log_out(self, request: Request) -> Response:
        access = self._access
        access.check_form(request, (await _fields(request)).get("token", ""))
        cookie = access.sessions.taken_away(secure=access.caller(request).secure)
        session = access.session(request)
        if session is not None:
            try:
                await access.end_session(session, by=access.principal(request).name)
            except LedgerError as error:
                _log.warning("the end of a session could not be stored: %s", error)
                problem = (
                    "you are logged out here, and other gateways could not be told: log out once more there"
                )
                return self._page(request, problem, 503, {"set-cookie": cookie})
        return RedirectResponse(LOGIN, 303, {"set-cookie": cookie})


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def _back(request: Request) -> str:
    """Return the address to which the provider sends people back; the gate has checked its host."""
    return f"{request.url.scheme}://{request.headers['host']}{_BACK}"


def _code(request: Request) -> str:
    """Return the code that the provider sent somebody back with. Raises: ProblemError (UNAUTHENTICATED)."""
    given = request.query_params
    if not given.get("code"):
        raise ProblemError(
            "UNAUTHENTICATED", f"the provider said no: {given.get('error', 'no reason')[:80]!a}"
        )
    return given["code"]


async def _fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, each once. Raises: ProblemError."""
    found = await read_form(request, bytes_max=_FORM_BYTES_MAX, fields_max=20)
    return {name: values[-1] for name, values in found.items()}


def inside(address: str) -> str:
    """Return the address if it is one of this gateway; else the address of the first page."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return quote(address, safe="/?&=%:+,;@!*'()~#-._") if is_ours and "\\" not in address else "/"

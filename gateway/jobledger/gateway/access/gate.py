"""The gate that every request passes first: it checks host, origin, sender, and the sender's rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from jobledger.gateway.access.identity import AdmittedPerson, Caller, Identities, carries_key
from jobledger.gateway.access.origins import (
    SAFE,
    Headers,
    Hosts,
    Network,
    Pairs,
    check_direct,
    check_kind,
    check_origin,
    check_proof,
    cors,
    forwarded,
    is_among,
)
from jobledger.gateway.access.rates import Rates, group_of
from jobledger.gateway.access.sessions import Sessions
from jobledger.gateway.problems import ProblemError

#: Health checks name the process by its address, so these paths accept every host.
_ANY_HOST: Final = frozenset({"/healthz", "/readyz"})
_API: Final = "/v1/"
#: A GET acts at these paths, since cron services send only GET. A page of another site can send one too, as the address
#: of an image, so these requests are checked like a POST.
_ACTS_BY_GET: Final = frozenset({"/v1/run"})

_UNSURE: Final = "the provider is to say again who you are: load a page of this gateway"

OnUse = Callable[[str, str], None]


class ArrivedRequest(NamedTuple):
    """The facts about a request that may be answered."""

    caller: Caller
    client: str  #: address of the client itself, even if a proxy is in between
    scheme: str  #: http or https, as the client speaks it
    who: AdmittedPerson | ProblemError  #: the sender, or why nobody was admitted: some paths are open to all


class Gate:
    """The gate of one gateway."""

    def __init__(
        self,
        *,
        identities: Identities,
        sessions: Sessions,
        hosts: Hosts,
        origins: frozenset[str],
        proxies: tuple[Network, ...],
        rates: Rates,
        on_use: OnUse,
    ) -> None:
        """Make a gate that calls `on_use` with the id of each key that is used, and the address that used it."""
        self._identities = identities
        self._sessions = sessions
        self._hosts = hosts
        self._origins = origins
        self._proxies = proxies
        self._is_proxy_known = bool(proxies) or identities.knows_proxy
        self._rates = rates
        self._on_use = on_use
        self._sweeps: list[Callable[[], None]] = []

    def on_sweep(self, sweep: Callable[[], None]) -> None:
        """Have a function called whenever keys changed, and once a second for keys that expired."""
        self._sweeps.append(sweep)

    def sweep(self) -> None:
        """Call the functions of `on_sweep`."""
        for each in self._sweeps:
            each()

    def refused_since(self, admitted: AdmittedPerson) -> ProblemError | None:
        """Return why somebody who was let in would not be let in now; see `Identities.refused_since`."""
        return self._identities.refused_since(admitted)

    def is_proxy(self, address: str) -> bool:
        """Return whether this is the address of a proxy, whose connections carry requests of others."""
        return bool(self._proxies) and is_among(address, self._proxies)

    def enter(self, request: Mapping[str, Any], headers: Headers, added: Pairs) -> ArrivedRequest | None:
        """Check a request, an ASGI scope; None for a preflight request, which needs no further answer.

        `added` gets headers of the answer, also of a refusal.

        Raises: ProblemError (MISDIRECTED, CROSS_SITE, RATE_LIMITED).
        """
        method, path = request["method"], request["path"]
        peer = request["client"][0] if request.get("client") else ""
        client, scheme = forwarded(peer, headers, request["scheme"], self._proxies)
        origin = headers.get("origin", "")
        is_preflight = method == "OPTIONS" and bool(origin) and "access-control-request-method" in headers
        if self._origins:
            added += cors(origin, self._origins, is_preflight=is_preflight)
        if path not in _ANY_HOST:
            if not self._is_proxy_known:
                check_direct(headers)
            self._hosts.check(headers.get("host", ""))
        if is_preflight:
            return None
        caller = Caller(headers=headers, peer=peer, secure=scheme == "https")
        if not carries_key(headers):
            check_origin("POST" if path in _ACTS_BY_GET else method, headers, scheme)
        try:
            admitted = self._identities.admit(caller)
        except ProblemError as error:
            return ArrivedRequest(caller, client, scheme, error)
        self._note(admitted, method, path, client, caller, added)
        session = admitted.session
        if session is not None and self._sessions.is_unsure(session) and _is_page(method, path, headers):
            return ArrivedRequest(caller, client, scheme, ProblemError("UNAUTHENTICATED", _UNSURE))
        return ArrivedRequest(caller, client, scheme, admitted)

    def _note(  # noqa: PLR0917 - facts of one request
        self, admitted: AdmittedPerson, method: str, path: str, client: str, caller: Caller, added: Pairs
    ) -> None:
        principal, session = admitted.principal, admitted.session
        if admitted.is_ambient and path.startswith(_API):
            check_kind(method, caller.headers)
            if path in _ACTS_BY_GET and method in SAFE:
                check_proof(caller.headers)
        if principal.key_id:
            self._on_use(principal.key_id, client)
        if admitted.is_counted:
            self._count(principal.key_id or principal.name, group_of(method, path), added)
        if session is not None and method in SAFE and self._sessions.is_old(session):
            cookie = self._sessions.cookie(session, secure=caller.secure)
            added.append((b"set-cookie", cookie.encode("latin-1")))

    def _count(self, who: str, group: str, added: Pairs) -> None:
        verdict = self._rates.take(who, group)
        added += verdict.headers
        if verdict.retry_after_s:
            raise ProblemError(
                "RATE_LIMITED",
                f"this key sends too much at once: wait {verdict.retry_after_s} s; "
                "the header RateLimit of each answer says how much is left",
                headers={"retry-after": str(verdict.retry_after_s)},
            )


def _is_page(method: str, path: str, headers: Headers) -> bool:
    """Return whether a browser asks for a page, so that it can be sent to another first; a form would be lost."""
    return method == "GET" and not path.startswith(_API) and headers.get("sec-fetch-mode") == "navigate"

"""Who asks: by a key, a session, a header of a proxy that is believed, or by sitting at a machine that has no key."""

from __future__ import annotations

import getpass
from typing import Final

import msgspec

from jobledger.admin.rows import safe_name
from jobledger.gateway.access.origins import Headers, Network, is_among
from jobledger.gateway.access.people import People
from jobledger.gateway.access.ring import KeyRing
from jobledger.gateway.access.sessions import Session, Sessions
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.secret import ShownKey, read_key
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import ROLES

_BEARER: Final = "bearer "
_OURS: Final = "bearer jl_"
_NO_UTF_8: Final = "\ufffd"  #: stands where bytes of a header are not UTF-8
_USER_MAX: Final = 200
#: In the scope of a request that passed the gate: who asks, as `Admitted`, or why nobody does, as `ProblemError`.
ADMITTED: Final = "jobledger.admitted"
#: In the same: what it says of who sent it, as `Caller`.
CALLER: Final = "jobledger.caller"
_CHALLENGE: Final = {"www-authenticate": 'Bearer realm="jobledger"'}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of who sent it."""

    headers: Headers  #: by their names in lower case
    peer: str  #: the address that the connection came from, a proxy's perhaps
    secure: bool  #: the client speaks https


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and how that is known."""

    principal: Principal
    shown: ShownKey | None = None  #: the key that was sent
    session: Session | None = None  #: the session that was sent
    user: str = ""  #: the person whom a proxy names

    @property
    def is_ambient(self) -> bool:
        """Whether a browser says it of itself, also where the page of another site made it send the request."""
        return self.shown is None

    @property
    def is_counted(self) -> bool:
        """Whether it is held to a rate: not who sits at the machine that has no key, for there is nobody else."""
        return self.shown is not None or self.session is not None or bool(self.user)

    @property
    def form_name(self) -> str:
        """Who sends a form, for its token: this session and no other, or this person."""
        return self.principal.name if self.session is None else f"session {self.session.token}"


class TrustedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A header in which a proxy says who somebody is."""

    name: str  #: in lower case
    proxies: tuple[Network, ...]  #: from whose addresses it is believed


def carries_key(headers: Headers) -> bool:
    """Return whether a request carries what may be a key of ours: no page of another site has one."""
    return headers.get("authorization", "")[: len(_OURS)].lower() == _OURS


def local_principal() -> Principal:
    """Return who sits at this machine: the account that this process runs under, with every permission."""
    try:
        account = safe_name(getpass.getuser())
    except (KeyError, OSError):  # no such account in this container
        account = ""
    return Principal(name=f"local:{account or 'operator'}", permissions=ROLES["admin"])


def _text(value: str) -> str:
    """Return what a proxy says in a header, without blanks around it; what is not in UTF-8 names nobody."""
    return value.strip(" \t").encode("latin-1").decode(errors="replace")


class Identities:
    """Says who asks. A key's record decides, each time."""

    def __init__(
        self,
        ring: KeyRing,
        sessions: Sessions,
        clock: Clock,
        *,
        local: Principal | None,
        header: TrustedHeader | None = None,
        people: People | None = None,
    ) -> None:
        """`local`: who everybody is while the ledger has no key; None: nobody is let in without one."""
        self._ring = ring
        self._sessions = sessions
        self._clock = clock
        self._local = None if local is None else Admitted(principal=local)
        self._header = header
        self._people = people

    @property
    def knows_proxy(self) -> bool:
        """Whether a proxy in front is believed about who somebody is."""
        return self._header is not None

    def admit(self, caller: Caller) -> Admitted:
        """Return who asks. Raises: ProblemError (UNAUTHENTICATED, LEDGER_UNREACHABLE)."""
        headers = caller.headers
        if carries_key(headers):
            return self._by_key(headers["authorization"])
        if self._header is not None and is_among(caller.peer, self._header.proxies):
            user = _text(headers.get(self._header.name, ""))
            if user:
                return Admitted(principal=self._person(user), user=user)
        if "authorization" in headers:
            return self._by_key(headers["authorization"])
        session = self._sessions.read(headers.get("cookie", ""), secure=caller.secure)
        if session is not None and (principal := self._of_session(session)) is not None:
            return Admitted(principal=principal, session=session)
        if self._local is not None and self._is_open():
            return self._local
        raise ProblemError(
            "UNAUTHENTICATED",
            "this gateway wants to know who you are: send `Authorization: Bearer` with a key of "
            "`jobledger keys create`, or log in at /login",
            headers=_CHALLENGE,
        )

    def still(self, admitted: Admitted) -> bool:
        """Return whether somebody who was let in would be let in now, in the same way and for the same."""
        try:
            return self._again(admitted) == admitted.principal
        except ProblemError:
            return False

    def _again(self, admitted: Admitted) -> Principal | None:
        if admitted.shown is not None:
            return self._opened(admitted.shown)
        if admitted.session is not None:
            return self._of_session(admitted.session)
        if admitted.user:
            return self._person(admitted.user)
        return self._local.principal if self._local is not None and self._is_open() else None

    def _is_open(self) -> bool:
        self._ring.require_fresh()
        return not self._ring.has_keys

    def _by_key(self, given: str) -> Admitted:
        shown = read_key(given[len(_BEARER) :].strip()) if given[: len(_BEARER)].lower() == _BEARER else None
        principal = None if shown is None else self._opened(shown)
        if shown is None or principal is None:
            # One sentence for a key that was never there, one that ended and a wrong secret: it tells nothing of any.
            raise ProblemError(
                "UNAUTHENTICATED",
                "this key opens nothing: it may be mistyped, rotated, expired or revoked: ask who manages the keys",
                headers=_CHALLENGE,
            )
        return Admitted(principal=principal, shown=shown)

    def _opened(self, shown: ShownKey) -> Principal | None:
        key = self._ring.find(shown.key)
        is_good = key is not None and key.opens(shown.sha256, self._clock.now())
        return self._ring.principal(key) if key is not None and is_good else None

    def _of_session(self, session: Session) -> Principal | None:
        if not self._sessions.holds(session):
            return None
        if not session.key:
            return None if self._people is None else self._people.principal(session.user, session.groups)
        key = self._ring.find(session.key)
        is_good = key is not None and key.keeps_session(session.sha256, self._clock.now())
        return self._ring.principal(key) if key is not None and is_good else None

    def _person(self, user: str) -> Principal:
        """Return a person whom a proxy names. Raises: ProblemError (UNAUTHENTICATED)."""
        # A comma is how a header looks that came twice: once from the client, and once from the proxy.
        is_name = len(user) <= _USER_MAX and user.isprintable() and not {",", _NO_UTF_8} & set(user)
        found = self._people.principal(user) if is_name and self._people is not None else None
        if found is None:
            raise ProblemError(
                "UNAUTHENTICATED", f"{user[:80]!a} may do nothing here: ask who manages the gateway"
            )
        return found

"""Identification of the caller of a request: by a key, a session, or a header of a trusted proxy."""

from __future__ import annotations

import getpass
import hmac
from typing import Final

import msgspec

from jobledger.admin.rows import safe_name
from jobledger.gateway.access.origins import Headers, Network, is_among
from jobledger.gateway.access.people import People
from jobledger.gateway.access.ring import KeyRing
from jobledger.gateway.access.sessions import Session, Sessions
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.account import ACCOUNT, ACCOUNT_FILE
from jobledger.ledger.access.secret import ShownKey, read_key
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import ROLES

_BEARER: Final = "bearer "
_OURS: Final = "bearer jl_"
_NO_UTF_8: Final = "\ufffd"  #: stands where bytes of a header are not UTF-8
_USER_MAX: Final = 200
#: Key in the scope of a request that passed the gate: its caller as `AdmittedPerson`, or why it has none as
#: `ProblemError`.
ADMITTED: Final = "jobledger.admitted"
#: Key in the same scope: the sender as the request shows it, a `Caller`.
CALLER: Final = "jobledger.caller"
_CHALLENGE: Final = {"www-authenticate": 'Bearer realm="jobledger"'}
_OF_LEDGER: Final = (
    "this gateway wants to know who you are: send `Authorization: Bearer` with a key of `jobledger keys create`, "
    "or log in at /login"
)
_OF_ACCOUNT: Final = (
    "this gateway wants to know that you are the account that runs it: open the address that it printed, or send "
    f"the header in {ACCOUNT_FILE} of that account's data folder (`curl -H @FILE`)"
)
_OF_ANOTHER_ACCOUNT: Final = (
    f"this is the key of another account than the one that runs this gateway: send the header in {ACCOUNT_FILE} of "
    "that account's data folder, or make keys with `jobledger keys create`"
)
_NO_ACCOUNT: Final = (
    "the key of an account opens nothing here, since the ledger has keys or this gateway is not for this machine "
    "alone: send a key of `jobledger keys create`"
)


#: Code of a refusal while the keys could not be read, so that it is not known who may ask.
UNSURE: Final = "LEDGER_UNREACHABLE"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The sender as the request shows it, not yet identified."""

    headers: Headers  #: values by their names in lower case
    peer: str  #: address that the connection came from; it may be a proxy's
    secure: bool  #: the client speaks https


class AdmittedPerson(msgspec.Struct, frozen=True, kw_only=True):
    """An identified caller, and the proof of that identity."""

    principal: Principal
    shown: ShownKey | None = None  #: the key that was sent
    session: Session | None = None  #: the session that was sent
    user: str = ""  #: the person whom a proxy names

    @property
    def is_ambient(self) -> bool:
        """Whether browsers add the proof by themselves, even to a request that a page of another site made."""
        return self.shown is None

    @property
    def is_counted(self) -> bool:
        """Whether a rate limit applies; it does not to the gateway's own account, which is then the only caller."""
        return bool(self.principal.key_id or self.user or (self.session is not None and self.session.user))

    @property
    def form_name(self) -> str:
        """The sender that the token of a form is bound to: this session alone, or this person."""
        return self.principal.name if self.session is None else f"session {self.session.token}"


class TrustedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A header in which a proxy says who somebody is."""

    name: str  #: its name in lower case
    proxies: tuple[Network, ...]  #: addresses of the proxies whose header counts


class AccountKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of the account that this process runs under; see `ledger.access.account`."""

    sha256: str  #: hash of its secret
    principal: Principal


def carries_key(headers: Headers) -> bool:
    """Return whether a request carries text in the form of our keys, which no page of another site has."""
    return headers.get("authorization", "")[: len(_OURS)].lower() == _OURS


def local_principal() -> Principal:
    """Return the account that this process runs under, with every permission."""
    try:
        account = safe_name(getpass.getuser())
    except (KeyError, OSError):  # no such account in this container
        account = ""
    return Principal(name=f"local:{account or 'operator'}", permissions=ROLES["admin"])


def _refusal(sentence: str) -> ProblemError:
    return ProblemError("UNAUTHENTICATED", sentence, headers=_CHALLENGE)


def _text(value: str) -> str:
    """Return the text of a proxy's header without blanks around it; "" for bytes that are not UTF-8."""
    return value.strip(" \t").encode("latin-1").decode(errors="replace")


class Identities:
    """The check of who asks, by the key's present record at each request."""

    def __init__(
        self,
        ring: KeyRing,
        sessions: Sessions,
        clock: Clock,
        *,
        account: AccountKey | None,
        header: TrustedHeader | None = None,
        people: People | None = None,
    ) -> None:
        """Admit by `account` while the ledger has no key; None: admit nobody then."""
        self._ring = ring
        self._sessions = sessions
        self._clock = clock
        self._account = account
        self._header = header
        self._people = people

    @property
    def knows_proxy(self) -> bool:
        """Whether a proxy in front is trusted to name people."""
        return self._header is not None

    def admit(self, caller: Caller) -> AdmittedPerson:
        """Return who asks. Raises: ProblemError (UNAUTHENTICATED, LEDGER_UNREACHABLE)."""
        headers = caller.headers
        if carries_key(headers):
            return self._by_key(headers["authorization"])
        if self._header is not None and is_among(caller.peer, self._header.proxies):
            user = _text(headers.get(self._header.name, ""))
            if user:
                return AdmittedPerson(principal=self._person(user), user=user)
        if "authorization" in headers:
            return self._by_key(headers["authorization"])
        session = self._sessions.read(headers.get("cookie", ""), secure=caller.secure)
        if session is not None and (principal := self._of_session(session)) is not None:
            return AdmittedPerson(principal=principal, session=session)
        raise _refusal(_OF_ACCOUNT if self.takes_account else _OF_LEDGER)

    @property
    def takes_account(self) -> bool:
        """Whether the account's key lets in now. Raises: ProblemError (LEDGER_UNREACHABLE)."""
        if self._account is None:
            return False
        self._ring.require_fresh()
        return not self._ring.has_keys

    def refused_since(self, admitted: AdmittedPerson) -> ProblemError | None:
        """Return why the same proof would not give an admitted person the same rights now; None if it would.

        Code LEDGER_UNREACHABLE: the answer is not known at present; any other code: the person would be refused.
        """
        try:
            holds = self._again(admitted) == admitted.principal
        except ProblemError as error:
            if error.code == UNSURE:
                return error
            holds = False
        if holds:
            return None
        return ProblemError(
            "UNAUTHENTICATED", "who asked is no longer let in: the key or the session ended meanwhile"
        )

    def _again(self, admitted: AdmittedPerson) -> Principal | None:
        if admitted.shown is not None:
            return self._opened(admitted.shown)
        if admitted.session is not None:
            return self._of_session(admitted.session)
        return self._person(admitted.user)

    def _by_key(self, given: str) -> AdmittedPerson:
        return self.known(given[len(_BEARER) :] if given[: len(_BEARER)].lower() == _BEARER else "")

    def known(self, text: str) -> AdmittedPerson:
        """Return who holds a key. Raises: ProblemError (UNAUTHENTICATED, LEDGER_UNREACHABLE)."""
        shown = read_key(text.strip())
        principal = None if shown is None else self._opened(shown)
        if shown is not None and principal is not None:
            return AdmittedPerson(principal=principal, shown=shown)
        if shown is not None and shown.key == ACCOUNT:
            raise _refusal(_OF_ANOTHER_ACCOUNT if self.takes_account else _NO_ACCOUNT)
        # The same sentence for an unknown key, an ended key and a wrong secret, so that it does not reveal which.
        raise _refusal(
            "this key opens nothing: it may be mistyped, rotated, expired or revoked: ask who manages the keys"
        )

    def _of_account(self, sha256: str) -> Principal | None:
        account = self._account
        is_it = account is not None and hmac.compare_digest(account.sha256, sha256) and self.takes_account
        return account.principal if account is not None and is_it else None

    def _opened(self, shown: ShownKey) -> Principal | None:
        if shown.key == ACCOUNT:
            return self._of_account(shown.sha256)
        key = self._ring.find(shown.key)
        is_good = key is not None and key.opens(shown.sha256, self._clock.now())
        return self._ring.principal(key) if key is not None and is_good else None

    def _of_session(self, session: Session) -> Principal | None:
        if not self._sessions.holds(session):
            return None
        if not session.key:
            return None if self._people is None else self._people.principal(session.user, session.groups)
        if session.key == ACCOUNT:
            return self._of_account(session.sha256)
        key = self._ring.find(session.key)
        is_good = key is not None and key.keeps_session(session.sha256, self._clock.now())
        return self._ring.principal(key) if key is not None and is_good else None

    def _person(self, user: str) -> Principal:
        """Return a person whom a proxy names. Raises: ProblemError (UNAUTHENTICATED)."""
        # A comma shows that the header was sent twice: by the client, and by the proxy.
        is_name = len(user) <= _USER_MAX and user.isprintable() and not {",", _NO_UTF_8} & set(user)
        found = self._people.principal(user) if is_name and self._people is not None else None
        if found is None:
            raise ProblemError(
                "UNAUTHENTICATED", f"{user[:80]!a} may do nothing here: ask who manages the gateway"
            )
        return found

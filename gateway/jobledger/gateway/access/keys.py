"""The access of one gateway, put together: it follows the keys, says who asks, and keeps the gate."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import anyio
import msgspec
from starlette.requests import HTTPConnection

from jobledger.gateway.access.follower import Following
from jobledger.gateway.access.gate import Gate
from jobledger.gateway.access.identity import (
    ADMITTED,
    CALLER,
    AccountKey,
    AdmittedPerson,
    Caller,
    Identities,
    TrustedHeader,
    local_principal,
)
from jobledger.gateway.access.oidc import OidcSettings, Provider
from jobledger.gateway.access.origins import Hosts, checked_origins, networks
from jobledger.gateway.access.people import People
from jobledger.gateway.access.rates import Quota, Rates
from jobledger.gateway.access.ring import KeyRing
from jobledger.gateway.access.sessions import SESSION_S, SESSION_S_MAX, Session, Sessions, signing_keys
from jobledger.gateway.access.uses import Uses
from jobledger.gateway.problems import ProblemError
from jobledger.ledger import Ledger
from jobledger.ledger.access.account import ACCOUNT, make_account_key
from jobledger.ledger.access.keys import change_key, find_key
from jobledger.ledger.access.secret import read_key
from jobledger.ledger.model.errors import (
    ConfigurationError,
    NotFoundError,
    RefusedError,
    ServerUnreachableError,
)
from jobledger.ledger.model.key import RedeemKey
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.nats.books.ended_sessions import EndedSession, write_ended

_SWEEP_EVERY_S: Final = 1.0
_FIRST_S: Final = 10.0
_log = logging.getLogger("jobledger.gateway.keys")


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway finds out who asks."""

    session_key: Path  #: file of the keys that sign sessions; made where it is missing
    account_key: Path | None = (
        None  #: file of the key of this account, made where it is missing; None: it has none
    )
    session_s: float = SESSION_S  #: how long a session lasts, in seconds
    hosts: tuple[str, ...] = ()  #: names that it goes by, besides loopback's
    origins: tuple[str, ...] = ()  #: of whose pages programs with a key may use the API
    behind_proxy: tuple[str, ...] = ()  #: addresses of proxies that are believed about clients and https
    user_header: str = ""  #: the header in which a proxy says who somebody is
    trust_from: tuple[str, ...] = ()  #: addresses of the proxies that are believed about that
    people: Path | None = None  #: file of what people may do whom a proxy or a provider knows
    oidc: OidcSettings | None = None  #: the provider that people can log in by
    quotas: dict[str, Quota] = {}  #: by group of requests, in the place of the usual ones

    def __post_init__(self) -> None:
        """Refuse settings that let in everybody or nobody. Raises: ConfigurationError."""
        if not 0 < self.session_s <= SESSION_S_MAX:
            raise ConfigurationError(
                f"--session-age must be more than nothing and at most 30 days, got {self.session_s:g} s"
            )
        if bool(self.user_header) != bool(self.trust_from):
            raise ConfigurationError(
                "--trust-user-header and --trust-from belong together: from other addresses anybody could send that header"
            )
        if self.knows_people and self.people is None:
            option = "--trust-user-header" if self.user_header else "--oidc-issuer"
            raise ConfigurationError(
                f"{option} tells who people are, and not what they may do: give --people FILE"
            )

    @property
    def knows_people(self) -> bool:
        """Whether somebody else says who people are, so that a key is not needed to get in."""
        return bool(self.user_header) or self.oidc is not None

    def account(self, *, is_loopback: bool) -> AccountKey | None:
        """Return the account's key, which lets in while the ledger has no keys; None where nothing does then.

        Raises: ConfigurationError.
        """
        # Who asks through a proxy sits anywhere, though the connection comes from this machine.
        is_ours = is_loopback and not self.knows_people and not self.behind_proxy
        if not is_ours or self.account_key is None:
            return None
        shown = read_key(make_account_key(self.account_key))
        assert shown is not None, "it was read"
        return AccountKey(sha256=shown.sha256, principal=local_principal())


class KeyAccess:
    """Who lets in. Made by `opened_access`."""

    def __init__(self, ledger: Ledger, settings: AccessSettings, *, is_loopback: bool) -> None:
        """Read the files that the settings name. Raises: ConfigurationError."""
        clock = ledger.clock
        self._ledger = ledger
        self.ring = KeyRing(clock)
        self.sessions = Sessions(signing_keys(settings.session_key), clock, settings.session_s)
        self.people = None if settings.people is None else People(settings.people, clock)
        self.provider = None if settings.oidc is None else Provider(settings.oidc, clock)
        self._knows_people = settings.knows_people
        header = None
        if settings.user_header:
            believed = networks("--trust-from", settings.trust_from)
            header = TrustedHeader(name=settings.user_header.lower(), proxies=believed)
        self.identities = Identities(
            self.ring,
            self.sessions,
            clock,
            account=settings.account(is_loopback=is_loopback),
            header=header,
            people=self.people,
        )
        self.rates = Rates(clock, settings.quotas)
        self.uses = Uses(ledger)
        self.gate = Gate(
            identities=self.identities,
            sessions=self.sessions,
            hosts=Hosts(settings.hosts, is_loopback=is_loopback),
            origins=checked_origins(settings.origins),
            proxies=networks("--behind-proxy", settings.behind_proxy),
            rates=self.rates,
            on_use=self.uses.note,
        )
        self.following = Following(ledger, self.ring, self.sessions)
        self.ring.on_change(self.gate.sweep)

    async def run(self) -> None:
        """Follow the keys, end what has to end, and store when keys were used, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.following.run)
            group.start_soon(self.uses.run)
            while True:
                await asyncio.sleep(_SWEEP_EVERY_S)
                self.gate.sweep()

    @property
    def has_login(self) -> bool:
        """Whether somebody can say who they are: by a key that can be used now, or as a proxy or provider says."""
        return self._knows_people or self.ring.has_live_key(self._ledger.clock.now())

    @property
    def takes_account(self) -> bool:
        """Whether the account's key lets in now."""
        try:
            return self.identities.takes_account
        except ProblemError:  # the server is away, so it is not known
            return False

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks. Raises: ProblemError (UNAUTHENTICATED, LEDGER_UNREACHABLE)."""
        return self._admitted(connection).principal

    def form_token(self, connection: HTTPConnection) -> str:
        """Return what each form of a page must hold, so that no page of another site can send one. Raises: ProblemError."""
        return self.sessions.form_token(self._admitted(connection).form_name)

    def can_log_out(self, connection: HTTPConnection) -> bool:
        """Return whether who asks logged in, in this browser. Raises: ProblemError."""
        return self.session(connection) is not None

    def session(self, connection: HTTPConnection) -> Session | None:
        """Return the session of who asks, None for who needs none. Raises: ProblemError."""
        return self._admitted(connection).session

    def check_form(self, connection: HTTPConnection, token: str) -> None:
        """Refuse a form that was not made for whoever sends it. Raises: ProblemError (CROSS_SITE)."""
        if not hmac.compare_digest(token.encode(), self.form_token(connection).encode()):
            raise ProblemError(
                "CROSS_SITE", "the form is of another session: load the page again and send it once more"
            )

    def count_login(self, client: str) -> None:
        """Count a try to log in from an address. Raises: ProblemError (RATE_LIMITED)."""
        verdict = self.rates.take(client, "login")
        if verdict.retry_after_s:
            raise ProblemError(
                "RATE_LIMITED",
                f"too many tries to log in: wait {verdict.retry_after_s} s",
                headers={"retry-after": str(verdict.retry_after_s)},
            )

    def log_in(self, text: str, *, secure: bool) -> str:
        """Return the header `Set-Cookie` of the session that a key opens. Raises: ProblemError (UNAUTHENTICATED)."""
        shown = self.identities.known(text).shown
        assert shown is not None, "it is known by its key"
        return self.open_session(key=shown.key, sha256=shown.sha256, secure=secure)

    def enter(self, text: str, *, secure: bool) -> str:
        """Return the header `Set-Cookie` of the session that the account's key opens, as it came in an address.

        Other keys open nothing here: what stands in an address is kept in histories and logs.

        Raises: ProblemError (UNAUTHENTICATED).
        """
        shown = read_key(text)
        if shown is None or shown.key != ACCOUNT:
            raise ProblemError(
                "UNAUTHENTICATED", "this address opens nothing: copy the whole line, or log in here"
            )
        return self.log_in(text, secure=secure)

    async def redeem(self, text: str, *, secure: bool) -> str:
        """Use a link, for good; return the header `Set-Cookie` of the session that it opens.

        Of many who use it at once, on whichever gateways, one gets in: the append is conditional.

        Raises: ProblemError (UNAUTHENTICATED), LedgerFullError, UnreachableError.
        """
        wrong = ProblemError(
            "UNAUTHENTICATED",
            "this link opens nothing: it may be used, expired or revoked; ask for another one",
        )
        shown = read_key(text.strip())
        key = None if shown is None else (await find_key(self._ledger.log, shown.key))[0]
        if shown is None or key is None or not key.redeems(shown.sha256, self._ledger.clock.now()):
            raise wrong
        try:
            await change_key(self._ledger, key.key, RedeemKey(), by=self.ring.principal(key).name)
        except (NotFoundError, RefusedError) as error:
            raise wrong from error
        return self.open_session(key=shown.key, sha256=shown.sha256, secure=secure)

    def unsure(self, caller: Caller) -> Session | None:
        """Return the session of a person, of whom the provider is to say again who that is; None for every other one."""
        session = self.sessions.read(caller.headers.get("cookie", ""), secure=caller.secure)
        return session if session is not None and self.sessions.is_unsure(session) else None

    async def end_session(self, session: Session, *, by: str) -> None:
        """End a session on every gateway of the ledger: here now, elsewhere within a second.

        Raises: LedgerError, where other gateways could not be told.
        """
        ledger, ended = self._ledger, EndedSession(by=by, at=self._ledger.clock.now())
        try:
            await write_ended(ledger.inbox, ledger.names, ledger.config.replicas, session.id, ended)
        finally:  # after it: the request that asks for this is of the same session
            self.sessions.end([session.id])

    def open_person(
        self, user: str, groups: tuple[str, ...], before: Session | None = None, *, secure: bool
    ) -> str:
        """Return the header `Set-Cookie` of the session of a person whom a provider knows.

        `before`: the session that this person has, which goes on with these groups.

        Raises: ProblemError (UNAUTHENTICATED) for one who may do nothing here.
        """
        if self.people is None or self.people.principal(user, groups) is None:
            raise ProblemError(
                "UNAUTHENTICATED", f"{user[:80]!a} may do nothing here: ask who manages the gateway"
            )
        known = self.people.known(groups)
        if before is not None:
            return self.sessions.cookie(self.sessions.confirmed(before, known), secure=secure)
        return self.open_session(user=user, groups=known, secure=secure)

    def open_session(self, *, secure: bool, **who: object) -> str:
        """Return the header `Set-Cookie` of a new session of somebody who said who they are; see `Sessions.open`."""
        return self.sessions.cookie(self.sessions.open(**who), secure=secure)

    @staticmethod
    def caller(connection: HTTPConnection) -> Caller:
        """Return what a request says of who sent it."""
        caller = connection.scope[CALLER]
        assert isinstance(caller, Caller)
        return caller

    @staticmethod
    def _admitted(connection: HTTPConnection) -> AdmittedPerson:
        admitted = connection.scope[ADMITTED]
        if isinstance(admitted, ProblemError):
            raise admitted
        assert isinstance(admitted, AdmittedPerson)
        return admitted


@contextlib.asynccontextmanager
async def opened_access(
    ledger: Ledger, settings: AccessSettings, *, is_loopback: bool
) -> AsyncGenerator[KeyAccess, None]:
    """Follow the keys of a ledger for the length of a block; when it begins, they were read once.

    Raises: ConfigurationError, ServerUnreachableError.
    """
    access = KeyAccess(ledger, settings, is_loopback=is_loopback)
    running = asyncio.ensure_future(_kept(access))
    try:
        try:
            async with asyncio.timeout(_FIRST_S):
                await access.following.begun.wait()
        except TimeoutError as error:
            raise ServerUnreachableError(
                f"the keys in the ledger could not be read within {_FIRST_S:g} s: is the server there?"
            ) from error
        yield access
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if access.provider is not None:
            await access.provider.close()


async def _kept(access: KeyAccess) -> None:
    """Run for ever: without it nobody is let in any more, once what is known is too old."""
    while True:
        try:
            await access.run()
        except Exception:  # noqa: BLE001 - whatever it is, the log says it and keys are followed on
            _log.exception("following the keys ended, and begins again")
        await asyncio.sleep(_SWEEP_EVERY_S)

"""The access control of one gateway: it follows the keys, identifies each caller, and holds the gate."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio
import msgspec
from starlette.requests import HTTPConnection

from jobledger.gateway.access.follower import KeyFollower
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
from jobledger.gateway.problems import ProblemError
from jobledger.ledger import Ledger
from jobledger.ledger.access.account import ACCOUNT, make_account_key
from jobledger.ledger.access.keys import change_key, find_key
from jobledger.ledger.access.secret import read_key
from jobledger.ledger.model.errors import (
    ConfigurationError,
    LedgerError,
    NotFoundError,
    RefusedError,
    ServerUnreachableError,
)
from jobledger.ledger.model.key import RedeemKey
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.nats.books.ended_sessions import EndedSession, write_ended
from jobledger.ledger.nats.books.key_uses import KeyUse, ensure_uses, write_use
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import ReplyTimeoutError

# The time of each key's last use: noted in memory at each request, and stored at most once a minute for a key.

_STORE_EVERY_S: Final = 5.0
_APART_S: Final = 60.0


class _Uses:
    """The last use of each key that one gateway saw."""

    def __init__(self, ledger: Ledger) -> None:
        """Store nothing before `run`."""
        self._ledger = ledger
        self._used: dict[str, tuple[datetime, str]] = {}  #: uses that are not stored yet, by key
        self._stored: dict[str, float] = {}  #: when a key's use was stored last, by the monotonic clock
        self._is_made = False

    def note(self, key: str, client: str) -> None:
        """Note that a key was used now. Each request calls this, so it costs next to nothing."""
        stored = self._stored.get(key)
        if stored is None or self._ledger.clock.monotonic() - stored >= _APART_S:
            self._used[key] = self._ledger.clock.now(), client

    async def run(self) -> None:
        """Store what was noted, for ever. Nothing depends on it: a use that cannot be stored is tried again."""
        while True:
            await asyncio.sleep(_STORE_EVERY_S)
            try:
                await self.store()
            except (LedgerError, ConnectionLostError, ReplyTimeoutError) as error:
                _log.debug("the last use of keys could not be stored: %s", error)

    async def store(self) -> None:
        """Store what was noted since. Raises: LedgerError, ReplyTimeoutError, ConnectionLostError."""
        if not self._used:
            return
        ledger = self._ledger
        if not self._is_made:
            await ensure_uses(ledger.inbox, ledger.names, ledger.config.replicas)
            self._is_made = True
        for key in list(self._used):
            at, client = self._used[key]
            await write_use(ledger.inbox, ledger.names, KeyUse(key=key, at=at, client=client))
            self._stored[key] = ledger.clock.monotonic()
            self._used.pop(key, None)


_SWEEP_EVERY_S: Final = 1.0
_FIRST_S: Final = 10.0
_log = logging.getLogger("jobledger.gateway.keys")


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which a gateway identifies its callers."""

    session_key: Path  #: file of the keys that sign sessions; made where it is missing
    account_key: Path | None = (
        None  #: file of the key of this account, made where it is missing; None: it has none
    )
    session_s: float = SESSION_S  #: how long a session lasts, in seconds
    hosts: tuple[str, ...] = ()  #: host names of the gateway, besides loopback's
    origins: tuple[str, ...] = ()  #: origins whose pages may call the API with a key
    behind_proxy: tuple[str, ...] = ()  #: addresses of proxies whose X-Forwarded-* headers count
    user_header: str = ""  #: the header in which a proxy names the user
    trust_from: tuple[str, ...] = ()  #: addresses of the proxies whose `user_header` counts
    people: Path | None = None  #: file of the rights of people whom a proxy or a provider names
    oidc: OidcSettings | None = None  #: the provider that people can log in by
    quotas: dict[str, Quota] = {}  #: quotas by group of requests, which replace the usual ones

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
        """Whether a proxy or a provider identifies people, so that they need no key."""
        return bool(self.user_header) or self.oidc is not None

    def account(self, *, is_loopback: bool) -> AccountKey | None:
        """Return the account's key, which is accepted while the ledger has no keys; None if it never is.

        Raises: ConfigurationError.
        """
        # A client of a proxy may be on any machine, though the connection comes from this one.
        is_ours = is_loopback and not self.knows_people and not self.behind_proxy
        if not is_ours or self.account_key is None:
            return None
        shown = read_key(make_account_key(self.account_key))
        assert shown is not None, "it was read"
        return AccountKey(sha256=shown.sha256, principal=local_principal())


class KeyAccess:
    """The keys, sessions, people and gate of one gateway; made by `opened_access`."""

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
        self.uses = _Uses(ledger)
        self.gate = Gate(
            identities=self.identities,
            sessions=self.sessions,
            hosts=Hosts(settings.hosts, is_loopback=is_loopback),
            origins=checked_origins(settings.origins),
            proxies=networks("--behind-proxy", settings.behind_proxy),
            rates=self.rates,
            on_use=self.uses.note,
        )
        self.following = KeyFollower(ledger, self.ring, self.sessions)
        self.ring.on_change(self.gate.sweep)

    async def run(self) -> None:
        """Follow the keys, end visits that are no longer allowed, and store the uses of keys, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.following.run)
            group.start_soon(self.uses.run)
            while True:
                await asyncio.sleep(_SWEEP_EVERY_S)
                self.gate.sweep()

    @property
    def has_login(self) -> bool:
        """Whether somebody can log in: by a key that can be used now, or through a proxy or a provider."""
        return self._knows_people or self.ring.has_live_key(self._ledger.clock.now())

    @property
    def takes_account(self) -> bool:
        """Whether the account's key lets in now."""
        try:
            return self.identities.takes_account
        except ProblemError:  # the server is away, so the answer is not known
            return False

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks. Raises: ProblemError (UNAUTHENTICATED, LEDGER_UNREACHABLE)."""
        return self._admitted(connection).principal

    def form_token(self, connection: HTTPConnection) -> str:
        """Return the token that each form of a page must hold: other sites do not know it. Raises: ProblemError."""
        return self.sessions.form_token(self._admitted(connection).form_name)

    def can_log_out(self, connection: HTTPConnection) -> bool:
        """Return whether the caller has a session, which can be logged out. Raises: ProblemError."""
        return self.session(connection) is not None

    def session(self, connection: HTTPConnection) -> Session | None:
        """Return the session of the caller, None for a caller without one. Raises: ProblemError."""
        return self._admitted(connection).session

    def check_form(self, connection: HTTPConnection, token: str) -> None:
        """Refuse a form that was not made for its sender. Raises: ProblemError (CROSS_SITE)."""
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
        """Return the header `Set-Cookie` of a session for the account's key that an address held.

        Other keys are refused here, since browser histories and logs keep addresses.

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

        If several redeem it at once, on any gateways, one gets in: the append is conditional.

        Raises: ProblemError (UNAUTHENTICATED), LedgerFullError, UnreachableError.
        """
        wrong = ProblemError(
            "UNAUTHENTICATED",
            "this link opens nothing: it may be used, expired or revoked; ask for another one",
        )
        shown = read_key(text.strip())
        key = None if shown is None else await find_key(self._ledger.log, shown.key)
        if shown is None or key is None or not key.redeems(shown.sha256, self._ledger.clock.now()):
            raise wrong
        try:
            await change_key(self._ledger, key.key, RedeemKey(), by=self.ring.principal(key).name)
        except (NotFoundError, RefusedError) as error:
            raise wrong from error
        return self.open_session(key=shown.key, sha256=shown.sha256, secure=secure)

    def unsure(self, caller: Caller) -> Session | None:
        """Return the caller's session if the provider has to confirm its person again; else None."""
        session = self.sessions.read(caller.headers.get("cookie", ""), secure=caller.secure)
        return session if session is not None and self.sessions.is_unsure(session) else None

    async def end_session(self, session: Session, *, by: str) -> None:
        """End a session on every gateway of the ledger: here now, elsewhere within a second.

        Raises: LedgerError if the end could not be stored for other gateways.
        """
        ledger, ended = self._ledger, EndedSession(by=by, at=self._ledger.clock.now())
        try:
            await write_ended(ledger.inbox, ledger.names, ledger.config.replicas, session.id, ended)
        finally:  # last, since the request that ends the session belongs to it
            self.sessions.end([session.id])

    def open_person(
        self, user: str, groups: tuple[str, ...], before: Session | None = None, *, secure: bool
    ) -> str:
        """Return the header `Set-Cookie` of the session of a person whom a provider knows.

        `before`: the person's present session, which goes on with these groups.

        Raises: ProblemError (UNAUTHENTICATED) for a person without any rights here.
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
        """Return the header `Set-Cookie` of a new session for an identified person; see `Sessions.open`."""
        return self.sessions.cookie(self.sessions.open(**who), secure=secure)

    @staticmethod
    def caller(connection: HTTPConnection) -> Caller:
        """Return what a request shows about its sender."""
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
    """Follow the keys of a ledger for the length of a block, which begins once they have been read.

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
    """Run for ever: without it the keys become too old to trust, and nobody is let in any more."""
    while True:
        try:
            await access.run()
        except Exception:  # noqa: BLE001 - any error is logged, and the keys are followed again
            _log.exception("following the keys ended, and begins again")
        await asyncio.sleep(_SWEEP_EVERY_S)

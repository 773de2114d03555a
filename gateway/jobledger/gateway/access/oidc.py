"""Log-in through an OpenID Connect provider: the code flow with PKCE. The file of people says what each may do.

The gateway asks the provider for its addresses and its keys. One of these keys must have signed the token of the
person, for this gateway and this log-in. Nothing else of the provider's is kept, and no token.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec

from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.account import THIS_MACHINE
from jobledger.ledger.files import open_file
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import ConfigurationError

_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_KNOWN_FOR_S: Final = 3_600.0
_KEYS_APART_S: Final = 10.0
_LEEWAY_S: Final = 60
_GROUPS_MAX: Final = 100
_WORD_MAX: Final = 200
#: Asymmetric algorithms only: with a secret that both sides know, a signature does not prove which of them signed.
_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One provider."""

    issuer: str  #: its address, as its tokens name it
    client_id: str  #: the id by which it knows this gateway
    client_secret: Path | None = None  #: file of the secret that the provider gave; None: it gave none
    user_claim: str = "email"  #: the claim of its token with a person's name
    groups_claim: str = "groups"  #: the claim of its token with a person's groups

    def __post_init__(self) -> None:
        """Refuse a provider that cannot be asked safely. Raises: ConfigurationError."""
        found = urlsplit(self.issuer)
        is_safe = found.scheme == "https" or (found.scheme == "http" and found.hostname in THIS_MACHINE)
        if not is_safe or not found.netloc:
            raise ConfigurationError(f"--oidc-issuer {self.issuer[:100]!r} is no address with https://")
        if not self.client_id:
            raise ConfigurationError(
                "--oidc-issuer needs --oidc-client-id, by which the provider knows this gateway"
            )
        if self.client_secret is not None:
            _ = self.secret()

    def secret(self) -> str:
        """Return the secret, "" for none. Raises: ConfigurationError."""
        if self.client_secret is None:
            return ""
        try:
            with open_file(self.client_secret, bytes_max=_ANSWER_BYTES_MAX) as file:
                return file.readline().decode().strip()
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(f"--oidc-client-secret-file {self.client_secret}: {error}") from error


class _Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that a provider publishes."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A person as the provider identifies them."""

    user: str
    groups: tuple[str, ...] = ()


class Provider:
    """The client of one provider."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        """Ask nothing before somebody logs in. Raises: ConfigurationError where the extra is not installed."""
        try:
            import joserfc  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport] - of the extra `oidc`
        except ImportError as error:
            raise ConfigurationError("--oidc-issuer needs pip install 'jobledger[oidc]'") from error
        self._settings = settings
        self._clock = clock
        self._addresses: tuple[_Addresses, float] | None = None
        self._keys: tuple[Any, float] | None = None
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False)

    @property
    def name(self) -> str:
        """The name by which people know the provider: its host."""
        return urlsplit(self._settings.issuer).hostname or self._settings.issuer

    async def begin(self, back: str, *, silently: bool = False) -> tuple[str, dict[str, str]]:
        """Return the provider's address for a browser, and the values that the browser must bring `back`.

        `silently`: the provider asks the person nothing; it sends them back with an error if not logged in there.

        Raises: ProblemError (PROVIDER_UNREACHABLE).
        """
        addresses = await self._found()
        passing = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        challenge = base64.urlsafe_b64encode(hashlib.sha256(passing["verifier"].encode()).digest()).rstrip(
            b"="
        )
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": back,
            "scope": "openid email profile",
            "state": passing["state"],
            "nonce": passing["nonce"],
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
            **({"prompt": "none"} if silently else {}),
        }
        address = addresses.authorization_endpoint
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}", passing

    async def finish(self, code: str, back: str, passing: dict[str, Any]) -> Person:
        """Return the person who came back with a code. Raises: ProblemError (UNAUTHENTICATED, PROVIDER_UNREACHABLE)."""
        addresses, settings = await self._found(), self._settings
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back,
            "client_id": settings.client_id,
            "code_verifier": passing["verifier"],
        }
        secret, login = settings.secret(), None
        if secret and "client_secret_basic" in addresses.token_endpoint_auth_methods_supported:
            login = httpx.BasicAuth(settings.client_id, secret)
        elif secret:
            fields["client_secret"] = secret
        said = await self._ask("POST", addresses.token_endpoint, data=fields, auth=login)
        token = said.get("id_token")
        if not isinstance(token, str):
            raise _refused("the provider did not take the code: log in again")
        return self._person(await self._claims(token, addresses, passing["nonce"]))

    async def _claims(self, token: str, addresses: _Addresses, nonce: str) -> dict[str, Any]:
        """Return the claims of a token after checking that the provider signed it for this gateway and this log-in."""
        from joserfc import jwt  # noqa: PLC0415 - of the extra `oidc`
        from joserfc.errors import InvalidKeyIdError, JoseError  # noqa: PLC0415

        algorithms = list(_ALGORITHMS)
        try:
            try:
                found = jwt.decode(token, await self._signing_keys(addresses), algorithms=algorithms)
            except InvalidKeyIdError:  # the provider may have changed its keys
                found = jwt.decode(
                    token, await self._signing_keys(addresses, anew=True), algorithms=algorithms
                )
            jwt.JWTClaimsRegistry(
                now=int(self._clock.now().timestamp()),
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": addresses.issuer},
                aud={"essential": True, "value": self._settings.client_id},
                exp={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(found.claims)
        except (JoseError, ValueError) as error:
            raise _refused(
                f"the provider's token is not good for this log-in ({type(error).__name__})"
            ) from error
        claims: dict[str, Any] = found.claims
        if (
            isinstance(claims["aud"], list)
            and claims.get("azp", self._settings.client_id) != self._settings.client_id
        ):
            raise _refused("the provider's token was made for another program")
        return claims

    def _person(self, claims: dict[str, Any]) -> Person:
        settings = self._settings
        user = claims.get(settings.user_claim)
        if not isinstance(user, str) or not 0 < len(user) <= _WORD_MAX or not user.isprintable():
            raise _refused(f"the provider's token has no {settings.user_claim!r} that names a person")
        if settings.user_claim == "email" and claims.get("email_verified") is not True:
            raise _refused(
                "the provider does not say that it verified this address (`email_verified`), and anybody could "
                "have given it: let the provider say so, or choose another claim with --oidc-user-claim"
            )
        try:
            groups = msgspec.convert(claims.get(settings.groups_claim) or (), tuple[str, ...])
        except msgspec.ValidationError:  # some providers give numbers or one word instead of a list
            groups = ()
        return Person(user=user, groups=groups[:_GROUPS_MAX])

    async def _found(self) -> _Addresses:
        now = self._clock.monotonic()
        if self._addresses is None or now - self._addresses[1] > _KNOWN_FOR_S:
            address = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = msgspec.convert(await self._ask("GET", address), _Addresses)
            except msgspec.ValidationError as error:
                raise _unreachable(f"it does not say where to log in: {error}") from error
            if found.issuer.rstrip("/") != self._settings.issuer.rstrip("/"):
                raise _unreachable("the issuer in its document is another address than --oidc-issuer")
            self._addresses = found, now
        return self._addresses[0]

    async def _signing_keys(self, addresses: _Addresses, *, anew: bool = False) -> Any:
        from joserfc.errors import JoseError  # noqa: PLC0415 - of the extra `oidc`
        from joserfc.jwk import KeySet  # noqa: PLC0415

        now = self._clock.monotonic()
        age_s = None if self._keys is None else now - self._keys[1]
        if age_s is None or age_s > _KNOWN_FOR_S or (anew and age_s > _KEYS_APART_S):
            said: Any = await self._ask("GET", addresses.jwks_uri)
            try:
                self._keys = KeySet.import_key_set(said), now
            except (JoseError, KeyError, TypeError, ValueError) as error:
                raise _unreachable("its keys cannot be read") from error
        assert self._keys is not None
        return self._keys[0]

    async def _ask(self, method: str, address: str, **given: Any) -> dict[str, Any]:
        """Return the JSON object of an answer; {} where the provider refused. Raises: ProblemError."""
        body = bytearray()
        try:
            async with self._client.stream(method, address, **given) as answer:
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > _ANSWER_BYTES_MAX:
                        raise _unreachable("its answer is too long")
            return msgspec.json.decode(bytes(body), type=dict[str, Any]) if answer.is_success else {}
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
            raise _unreachable(type(error).__name__) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def _refused(sentence: str) -> ProblemError:
    return ProblemError("UNAUTHENTICATED", sentence)


def _unreachable(why: str) -> ProblemError:
    return ProblemError(
        "PROVIDER_UNREACHABLE",
        f"the provider that knows who people are gives no answer that can be used: {why}",
    )

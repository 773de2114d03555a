"""The credentials of a client, and its means to check the server: settings whose files are read at each connection.

A file that is replaced while the client runs (a renewed certificate, another password) counts from the next
connection on.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.subjects import is_token
from jobledger.ledger.nats.addresses import shown
from jobledger.ledger.variables import variable

_FILE_BYTES_MAX: Final = 1 << 20
_JWT: Final = re.compile(rb"-----BEGIN NATS USER JWT-----\s+(\S+)\s")
_SEED: Final = re.compile(rb"(?:^|\s)(SU[A-Z2-7]{56})(?:\s|$)")
_WAYS: Final = (("creds",), ("nkey",), ("user", "password", "password_file"), ("token", "token_file"))


def inbox_of(user: str) -> str:
    """Return the default prefix of a user's inboxes: with it no other user receives the answers."""
    return f"_INBOX_{user}" if is_token(user) else "_INBOX"


def user_of_inbox(prefix: str) -> str:
    """Return the user in a prefix made by `inbox_of`; "" for a prefix of no user."""
    user = prefix.removeprefix("_INBOX_")
    return user if user != prefix and is_token(user) else ""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with the same names everywhere: in `connect`, in options of a command, in environment variables.

    All but `user`, `password` and `token` are paths of files.
    """

    creds: str | Path = ""  #: credentials file: a JWT and the seed of its key
    nkey: str | Path = ""  #: file with the seed of an nkey
    user: str = ""
    password: str = ""
    password_file: str | Path = ""  #: its first line is the password
    token: str = ""
    token_file: str | Path = ""  #: its first line is the token
    tls_ca: str | Path = ""  #: PEM; authority of the servers' certificates, if unknown to the system
    tls_cert: str | Path = ""  #: PEM; the client's own certificate
    tls_key: str | Path = ""  #: PEM; its key, if that is not in the same file

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other; no file is read yet.

        Raises: ConfigurationError.
        """
        ways = [way[0] for way in _WAYS if any(getattr(self, name) for name in way)]
        if len(ways) > 1:
            raise ConfigurationError(
                f"{' and '.join(ways)} are given: one of them is enough, leave the others out"
            )
        for text, file in (("password", "password_file"), ("token", "token_file")):
            if getattr(self, text) and getattr(self, file):
                raise ConfigurationError(f"{text} and {file} are given: leave one of them out")
        if bool(self.user) != bool(self.password or self.password_file):
            missing = f"a password: set {named('password')} or {named('password_file')}"
            raise ConfigurationError(
                f"user needs {missing}" if self.user else f"a password needs {named('user')}"
            )
        if self.tls_key and not self.tls_cert:
            raise ConfigurationError(f"tls_key is given without its certificate: set {named('tls_cert')}")
        for name in ("creds", "nkey"):
            if _SEED.search(str(getattr(self, name)).encode()):
                raise ConfigurationError(
                    f"{name} is a seed itself: put it into a file that only you can read, name the file"
                )

    def __repr__(self) -> str:
        """Show no secret value, since a repr goes into logs."""
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields that may be shown; msgspec's own method, which rich would call, returns all."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        hidden = {name: "..." for name in (*NAMES, "nats_options") if fields.get(name)}
        address = {"url": shown(fields["url"])} if "url" in fields else {}
        return [(name, value) for name, value in {**fields, **hidden, **address}.items() if value]

    def given(self) -> dict[str, Any]:
        """Return the given settings as text, for another `connect`."""
        found = {name: getattr(self, name) for name in NAMES}
        return {name: str(value) for name, value in found.items() if value}

    def variables(self) -> dict[str, str]:
        """Return the given settings for a child's environment, since arguments of a process must not hold secrets."""
        return {variable(name): value for name, value in self.given().items()}

    @property
    def wants_tls(self) -> bool:
        """Whether a connection without TLS is refused, whatever the address says."""
        return bool(self.tls_ca or self.tls_cert)

    def check(self) -> None:
        """Read every file once, so that errors in files are raised before anything is sent.

        Raises: ConfigurationError.
        """
        if self.wants_tls:
            self.tls()
        for name in ("password_file", "token_file"):
            if getattr(self, name):
                self._line(name)
        if self.creds or self.nkey:
            self.signer().answer("")

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context that checks a server's certificate and shows ours.

        Raises: ConfigurationError.
        """
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if getattr(self, name):
                self._content(name)  # ssl's own errors do not name the missing file
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except ssl.SSLError as error:
            raise ConfigurationError(f"tls_ca {self.tls_ca} holds no certificate in PEM") from error
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key or None, password=_refuse_to_ask)
            except ssl.SSLError as error:
                key = self.tls_key or self.tls_cert
                raise ConfigurationError(
                    f"tls_cert {self.tls_cert} and the key in {key} are no pair of a certificate and its key in PEM"
                ) from error
        return context

    def login(self) -> dict[str, Any]:
        """Return nats-py's arguments for user, password and token; files are read when it asks for them."""
        if self.user:
            return {"user": self.user, "password": self.password or (lambda: self._line("password_file"))}
        if self.token or self.token_file:
            return {"token": self.token or (lambda: self._line("token_file"))}
        return {}

    def signer(self) -> Signer:
        """Return the signer that answers a server's challenge with creds or nkey.

        Raises: ConfigurationError.
        """
        name = "creds" if self.creds else "nkey"
        content = self._content(name)
        seed, jwt = _SEED.search(content), _JWT.search(content)
        if seed is None or (self.creds and jwt is None):
            what = "JWT and seed of a user" if self.creds else "seed of a user's nkey (SU...)"
            raise ConfigurationError(f"{name} {getattr(self, name)} holds no {what}")
        return Signer(seed[1], "" if jwt is None or self.nkey else jwt[1].decode())

    def told(self) -> str:
        """Return the setting to check when the server refuses us, for a person; without secrets."""
        for name in ("creds", "nkey", "password_file", "token_file"):
            if getattr(self, name):
                return f"{name} {getattr(self, name)}"
        return "user and password" if self.user else "the token" if self.token else ""

    def _line(self, name: str) -> str:
        lines = self._content(name).decode(errors="replace").splitlines()
        if not lines or not lines[0].strip():
            raise ConfigurationError(
                f"{name} {getattr(self, name)} is empty: its first line is to be the secret"
            )
        return lines[0].strip()

    def _content(self, name: str) -> bytes:
        path = Path(getattr(self, name))
        try:
            with open_file(path) as file:
                return file.read(_FILE_BYTES_MAX)
        except OSError as error:
            raise ConfigurationError(f"{name} {path} cannot be read: {error.strerror or error}") from error


class Signer(NamedTuple):
    """Answers the challenge of one connection."""

    seed: bytes
    jwt: str  #: "" for a bare nkey

    def answer(self, nonce: str) -> dict[str, str]:
        """Return the fields of CONNECT that identify us. Raises: ConfigurationError."""
        pair = self._pair()
        signed = base64.b64encode(pair.sign(nonce.encode())).decode()
        shown = {"jwt": self.jwt} if self.jwt else {"nkey": pair.public_key.decode()}
        return {"sig": signed, **shown}

    def _pair(self) -> Any:
        try:
            import nkeys  # type: ignore[import-untyped] # noqa: PLC0415 - an extra, without types
        except ImportError as error:
            message = "creds and nkey need the library nkeys: pip install 'jobledger[nkeys]'"
            raise ConfigurationError(message) from error
        return nkeys.from_seed(bytearray(self.seed))

    @property
    def expired_at(self) -> datetime | None:
        """The moment at which the JWT expired; None if it did not, or has no such time."""
        try:
            body = self.jwt.split(".")[1]
            expires = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("exp", 0)
            at = datetime.fromtimestamp(expires, UTC)
        except (IndexError, ValueError, TypeError, AttributeError, OverflowError, OSError):
            return None
        return at if expires > 0 and at < datetime.now(UTC) else None


NO_ACCESS: Final = Access()
NAMES: Final = Access.__struct_fields__
LOGIN_NAMES: Final = frozenset(name for way in _WAYS for name in way)


def named(name: str) -> str:
    """Return a setting's name for messages: in Python, as an option, and as an environment variable."""
    option = "" if name in {"password", "token"} else f"--{name.replace('_', '-')}, "
    return f"{name} ({option}{variable(name)})"


def from_variables(variables: Mapping[str, str], *, login: bool = True) -> dict[str, str]:
    """Return the settings in an environment's variables; without `login` only those of TLS."""
    names = NAMES if login else sorted({*NAMES} - LOGIN_NAMES)
    return {name: variables[variable(name)] for name in names if variables.get(variable(name))}


def _refuse_to_ask() -> NoReturn:
    raise ConfigurationError(
        "tls_key is encrypted: give a key without a passphrase, in a file that only you can read"
    )

"""Sessions of browsers: a signed cookie that says who logged in, and by which key. Each request checks that key.

Nothing of a session is stored while it lasts, so any other gateway with the same signing keys takes it. It lasts as
long as the settings say. It ends earlier if it is not used for 12 hours, if its key ends, or if somebody logs out: the
ids of sessions that ended lie in a bucket that every gateway reads once a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from itsdangerous import BadSignature, URLSafeSerializer

from jobledger.ledger.files import make_folder, open_file, open_to_write, sync_file
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import ConfigurationError

#: How long a session lasts, unless the settings say otherwise.
SESSION_S: Final = 12 * 3600.0
#: The longest session that settings may ask for; the ids of ended sessions are kept for longer.
SESSION_S_MAX: Final = 30 * 24 * 3600.0
#: A session that is not used for this long ends.
_IDLE_S: Final = 12 * 3600
#: A cookie of this age is replaced by a fresh one.
_RENEW_S: Final = 900
#: After this time a page sends a person to the provider, which confirms the person and the groups.
_SURE_S: Final = 900
#: After this time no request is answered until the provider has confirmed the person.
_SURE_S_MAX: Final = 3_600
_AHEAD_S: Final = 60  # how far the clocks of gateways may differ
_COOKIE: Final = "jobledger"
_SECURE_PREFIX: Final = "__Host-"
_KEY_BYTES_MIN: Final = 32
_ID_CHARACTERS: Final = 32
_FILE_BYTES_MAX: Final = 64 << 10


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person or key that logged in."""

    key: str = ""  #: the id of the key or link, "" for a person whom a provider knows
    sha256: str = ""  #: hash of the key's secret: a session ends with the secret that opened it
    user: str = ""  #: the person whom a provider knows
    groups: tuple[str, ...] = ()  #: the person's groups, as that provider named them
    issued: int  #: seconds since 1970: when this cookie was made, or the provider confirmed the person
    began: int = (
        0  #: seconds since 1970 when somebody logged in; 0: use `issued` (a cookie of an older version)
    )
    token: str  #: random text that the tokens of its forms are made from

    @property
    def id(self) -> str:
        """The id under which an ended session is stored: neither its cookie nor a form can be made from it."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:_ID_CHARACTERS]


def signing_keys(path: Path) -> list[bytes]:
    """Return the keys of a file, one a line; the last one signs, all of them verify. A missing file is made.

    Gateways that accept each other's sessions share it. Raises: ConfigurationError, which shows none of its content.
    """
    try:
        if not path.exists():
            _make(path)
        with open_file(path, bytes_max=_FILE_BYTES_MAX) as file:
            lines = [line.strip() for line in file.read().splitlines()]
    except OSError as error:
        raise ConfigurationError(
            f"the signing key of sessions in {path} cannot be used: {error.strerror or error}"
        ) from error
    keys = [line for line in lines if line]
    if not keys or any(len(each) < _KEY_BYTES_MIN for each in keys):
        raise ConfigurationError(
            f"{path} must hold signing keys of at least {_KEY_BYTES_MIN} characters, one a line: "
            "delete it, and a good one is made"
        )
    return keys


def _make(path: Path) -> None:
    make_folder(path.parent)
    with (
        contextlib.suppress(FileExistsError),
        open_to_write(path, "xb") as file,
    ):  # another gateway was faster
        file.write(secrets.token_urlsafe(_KEY_BYTES_MIN).encode() + b"\n")
        sync_file(file)


class Sessions:
    """Makes and reads cookies, and the tokens of forms."""

    def __init__(self, keys: list[bytes], clock: Clock, session_s: float = SESSION_S) -> None:
        """`keys`: see `signing_keys`; `session_s`: how long a session lasts."""
        self._clock = clock
        self._session_s = session_s
        self._ended: set[str] = set()
        how = {"digest_method": hashlib.sha256, "key_derivation": "hmac"}
        self._signer = URLSafeSerializer(keys, salt="jobledger session", signer_kwargs=how)
        self._passing = URLSafeSerializer(keys, salt="jobledger passing", signer_kwargs=how)
        self._secret = hashlib.sha256(b"jobledger forms" + keys[-1]).digest()

    def open(self, **who: Any) -> Session:
        """Return a new session for a `key` with its `sha256`, or for a `user` with `groups`."""
        now = self._now()
        return Session(**who, issued=now, began=now, token=secrets.token_urlsafe(16))

    def confirmed(self, session: Session, groups: tuple[str, ...]) -> Session:
        """Return the session of a person whom the provider confirmed, with their groups. Its end stays the same."""
        return msgspec.structs.replace(session, groups=groups, issued=self._now())

    def cookie(self, session: Session, *, secure: bool) -> str:
        """Return the header `Set-Cookie` of a session, issued now; a person's keeps the time of confirmation."""
        issued = session.issued if session.user else self._now()
        said = msgspec.to_builtins(msgspec.structs.replace(session, issued=issued))
        left_s = max(0, int(self._ends_at(session)) - self._now())
        return _set_cookie(_COOKIE, str(self._signer.dumps(said)), left_s, secure=secure)

    def taken_away(self, *, secure: bool) -> str:
        """Return the header `Set-Cookie` that deletes the cookie."""
        return _set_cookie(_COOKIE, "", 0, secure=secure)

    def read(self, cookies: str, *, secure: bool) -> Session | None:
        """Return the session of a request's header `Cookie`; None unless it is signed and still lasts."""
        text = _cookie(cookies, _COOKIE, secure=secure)
        if not text:
            return None
        try:
            session = msgspec.convert(self._signer.loads(text), Session)
        except (BadSignature, msgspec.ValidationError, ValueError):
            return None
        if not session.began:
            session = msgspec.structs.replace(session, began=session.issued)
        return session if self._now() - session.issued >= -_AHEAD_S and self._lasts(session) else None

    def holds(self, session: Session) -> bool:
        """Whether a session is valid now: it lasts, and the provider confirmed its person not long ago."""
        is_known = not session.user or self._now() - session.issued < _SURE_S_MAX
        return is_known and self._lasts(session)

    def _lasts(self, session: Session) -> bool:
        now = self._now()
        return (
            now < self._ends_at(session) and now - session.issued < _IDLE_S and session.id not in self._ended
        )

    def _ends_at(self, session: Session) -> float:
        return session.began + self._session_s

    def end(self, ids: Iterable[str]) -> None:
        """Refuse these sessions from now on."""
        self._ended.update(ids)

    def is_old(self, session: Session) -> bool:
        """Whether to replace the cookie, which records its use. Only `confirmed` replaces a person's cookie."""
        return not session.user and self._now() - session.issued >= _RENEW_S

    def is_unsure(self, session: Session) -> bool:
        """Whether the provider has to confirm the person and their groups again."""
        return bool(session.user) and self._now() - session.issued >= _SURE_S

    def form_token(self, who: str) -> str:
        """Return the token that forms of `who` must hold; `who`: a session's token, or a principal's name."""
        return hmac.new(self._secret, who.encode(), hashlib.sha256).hexdigest()

    def passing(self, name: str, value: dict[str, str], life_s: int, *, secure: bool) -> str:
        """Return the header `Set-Cookie` of values that a browser carries for a short time, such as during a log-in."""
        text = str(self._passing.dumps({**value, "issued": self._now()})) if value else ""
        return _set_cookie(f"{_COOKIE}-{name}", text, life_s if value else 0, secure=secure)

    def passed(self, cookies: str, name: str, life_s: int, *, secure: bool) -> dict[str, Any]:
        """Return the values that a browser carried; {} where they are unsigned or too old."""
        try:
            found: dict[str, Any] = self._passing.loads(_cookie(cookies, f"{_COOKIE}-{name}", secure=secure))
            age_s = self._now() - int(found["issued"])
        except (BadSignature, ValueError, TypeError, KeyError):
            return {}
        return found if -_AHEAD_S <= age_s < life_s else {}

    def _now(self) -> int:
        return int(self._clock.now().timestamp())


def _set_cookie(name: str, value: str, life_s: int, *, secure: bool) -> str:
    # The prefix binds a cookie to this host, https and the path /: no other host of the domain can plant one.
    prefix, flag = (_SECURE_PREFIX, "; Secure") if secure else ("", "")
    return f"{prefix}{name}={value}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Lax{flag}"


def _cookie(cookies: str, name: str, *, secure: bool) -> str:
    """Return the value of a cookie, "" where there is none."""
    wanted = f"{_SECURE_PREFIX}{name}" if secure else name
    for each in cookies.split(";"):
        key, _, value = each.strip().partition("=")
        if key == wanted:
            return value
    return ""

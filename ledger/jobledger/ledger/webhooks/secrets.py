"""Secrets of routes and webhooks: read where a reference says, or unsealed with a key file; made and sealed for a person.

What is read here goes into a signature and nowhere else: not into an event, a log line or an error.
"""

from __future__ import annotations

import base64
import secrets as randomness
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobledger.ledger.files import open_file, open_to_write, sync_file
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.hooks.errors import SecretUnavailableError
from jobledger.ledger.model.hooks.references import check_reference

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_FILE_BYTES_MAX: Final = 16 << 10
_SECRET_BYTES: Final = 32
#: Prefix of the variables that whoever manages webhooks and routes may refer to.
OPEN_VARIABLES: Final = "JOBLEDGER_SECRET_"
#: What secrets of the standard-webhooks scheme begin with; base64 follows.
_PREFIX: Final = "whsec_"


class Secrets:
    """The secrets that references name on this machine."""

    def __init__(
        self, environ: Mapping[str, str], key_file: Path | None = None, folder: Path | None = None
    ) -> None:
        """`environ`: the variables of this process; `key_file`: unseals `sealed:...`, made by `make_key_file`.

        `folder`: where files lie that whoever manages webhooks and routes may refer to.
        """
        self._environ = environ
        self._key_file = key_file
        self._folder = None if folder is None else folder.absolute()

    def is_open(self, reference: str) -> bool:
        """Return whether a reference is for whoever manages webhooks and routes.

        Others are for administrators: a receiver can test guesses at the secret by what is signed with it, and
        the refusal of an unreadable reference shows which files and variables exist.
        """
        kind, _, place = reference.partition(":")
        if kind == "file":
            path = Path(place)
            return self._folder is not None and ".." not in path.parts and path.is_relative_to(self._folder)
        return kind == "sealed" or place.startswith(OPEN_VARIABLES)

    def read(self, reference: str) -> bytes:
        """Return the secret that a reference stands for, read again at each call; never empty.

        Raises: SecretUnavailableError, InvalidInputError for what is no reference.
        """
        kind, _, place = check_reference("the secret", reference).partition(":")
        if kind == "sealed":
            return self._unsealed(place)
        found = self._environ.get(place, "").encode() if kind == "env" else self._file(Path(place))
        found = found.strip()
        if not found:
            raise SecretUnavailableError(
                f"secret {reference} is empty or not there: set it where the gateway and its worker are started"
            )
        return found

    def seal(self, secret: bytes) -> str:
        """Return a reference that holds a secret encrypted under the key file.

        Raises: SecretUnavailableError without a key file, or for one that is none; ConfigurationError without the library.
        """
        return f"sealed:{self._key().encrypt(secret).decode()}"

    def _file(self, path: Path) -> bytes:
        try:
            with open_file(path, bytes_max=_FILE_BYTES_MAX) as file:
                return file.read()
        except OSError as error:
            raise SecretUnavailableError(f"secret file:{path} cannot be read: {error.strerror}") from error

    def _unsealed(self, sealed: str) -> bytes:
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - an extra

        try:
            return self._key().decrypt(sealed)
        except InvalidToken as error:
            raise SecretUnavailableError(
                f"a sealed secret does not fit the key file {self._key_file}: give the file that sealed it, "
                "or rotate to a new secret"
            ) from error

    def _key(self) -> Fernet:
        if self._key_file is None:
            raise SecretUnavailableError(
                "a sealed secret needs the key file that seals and unseals it: name it"
            )
        fernet = _library()
        try:
            return fernet(self._file(self._key_file).strip())
        except ValueError as error:
            raise SecretUnavailableError(f"{self._key_file} is no key file of sealed secrets") from error


def make_key_file(path: Path) -> None:
    """Write a new key that seals secrets, readable by its owner alone. Raises: ConfigurationError, OSError."""
    key = _library().generate_key()
    try:
        with open_to_write(path, "xb") as file:
            file.write(key + b"\n")
            sync_file(file)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} exists: name a new file, since what it seals needs it") from error


def new_secret() -> str:
    """Return a new secret of 32 random bytes, as text that receivers are given: `whsec_...`."""
    return _PREFIX + base64.b64encode(randomness.token_bytes(_SECRET_BYTES)).decode()


def key_of(secret: bytes) -> bytes:
    """Return the key that a secret stands for: the bytes behind `whsec_`, or the secret itself.

    Raises: SecretUnavailableError for what is not base64 behind `whsec_`.
    """
    if not secret.startswith(_PREFIX.encode()):
        return secret
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX.encode()), validate=True)
    except ValueError as error:
        raise SecretUnavailableError("a secret begins with whsec_, and what follows is no base64") from error


def _library() -> type[Fernet]:
    try:
        from cryptography.fernet import Fernet  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = "sealed secrets need a library: install jobledger with the extra `seals`"
        raise ConfigurationError(message) from error
    return Fernet

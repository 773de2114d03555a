"""One key of an owner: AES-256-GCM over values, and an HMAC over what must be compared. Needs the extra `seals`."""

from __future__ import annotations

import hmac
import os
from typing import Final, get_args

from jobledger.ledger.model.errors import ConfigurationError, SealBrokenError
from jobledger.ledger.model.seals import Kind

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as error:  # pragma: no cover - a test runs it in a process of its own
    raise ConfigurationError(
        "values of owners are sealed with the library `cryptography`, which is not installed: "
        "pip install 'jobledger[seals]'"
    ) from error

SECRET_BYTES: Final = 32
_NONCE: Final = 12
_DIGITS: Final = 40


class OwnerKey:
    """A `ValueKey` made of a secret of 32 bytes. Seals at random, so equal values look different."""

    __slots__ = ("_about", "_aead", "_index", "id")

    def __init__(self, key_id: str, secret: bytes, environment: str) -> None:
        self.id = key_id
        self._aead = AESGCM(hmac.digest(secret, b"jobledger seal 1", "sha256"))
        self._index = hmac.digest(secret, b"jobledger index 1", "sha256")
        about = f"jobledger sealed 1\n{environment}\n{key_id}\n"
        self._about: dict[str, bytes] = {kind: (about + kind).encode() for kind in get_args(Kind)}

    def seal(self, kind: Kind, text: bytes) -> bytes:
        """Return nonce, ciphertext and tag; authenticated with environment, key and kind."""
        nonce = os.urandom(_NONCE)
        return nonce + self._aead.encrypt(nonce, text, self._about[kind])

    def unseal(self, kind: Kind, blob: bytes) -> bytes:
        """Return the text. Raises: SealBrokenError."""
        try:
            return self._aead.decrypt(blob[:_NONCE], blob[_NONCE:], self._about[kind])
        except (InvalidTag, ValueError) as error:
            raise SealBrokenError(
                f"a {kind} does not open with the key {self.id} that its event names: it was changed, or belongs elsewhere"
            ) from error

    def index(self, text: bytes) -> str:
        """Return a hash that only who has the secret can make."""
        return hmac.digest(self._index, text, "sha256").hex()[:_DIGITS]


class WrapKey:
    """One master key: wraps the secrets of owners' keys. `about` names whose secret it is, and is authenticated."""

    __slots__ = ("_aead",)

    def __init__(self, secret: bytes) -> None:
        self._aead = AESGCM(secret)

    def wrap(self, secret: bytes, about: bytes) -> bytes:
        """Return a secret as only this key opens it."""
        nonce = os.urandom(_NONCE)
        return nonce + self._aead.encrypt(nonce, secret, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        """Return the secret. Raises: SealBrokenError."""
        try:
            return self._aead.decrypt(wrapped[:_NONCE], wrapped[_NONCE:], about)
        except (InvalidTag, ValueError) as error:
            raise SealBrokenError("a wrapped key does not open with the master key that it names") from error

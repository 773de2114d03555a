"""The keys of seals: Ed25519 in PEM files, as openssl writes and reads them.

The library that signs comes with the extra `seals`; without it everything else works, and a request for a key raises an
error that says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from jobledger.ledger.files import open_file, open_to_write, sync_file
from jobledger.ledger.model.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_KEY_BYTES_MAX: Final = 16 << 10
_PRIVATE_MODE: Final = 0o600


class Signer:
    """A private key and the name its seals carry."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = _key_id(key.public_key())  #: hex sha256 of the public key's 32 bytes

    def sign(self, text: bytes) -> str:
        """Return the signature as hex."""
        return self._key.sign(text).hex()


class TrustedKeys:
    """The public keys whose seals count."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = dict(keys)

    def __contains__(self, key_id: str) -> bool:
        """Return whether seals of this key count."""
        return key_id in self._keys

    @property
    def key_ids(self) -> list[str]:
        """The ids of these keys, in order."""
        return sorted(self._keys)

    def signed(self, key_id: str, signature: str, text: bytes) -> bool:
        """Return whether the signature is that key's over the text."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

        try:
            self._keys[key_id].verify(bytes.fromhex(signature), text)
        except (InvalidSignature, ValueError):
            return False
        return True


def make_keys(path: Path) -> tuple[Path, str]:
    """Write a new private key to `path`, readable by its owner alone, and its public key beside it, in `<path>.pub`.

    Returns the public key's file and the key's id. A file that exists is left alone.

    Raises: ConfigurationError, OSError.
    """
    private_key, serialization = _library()
    if not path.name:
        raise ConfigurationError(f"{str(path)!r} is a folder: name a file for the key")
    public_path = path.with_name(path.name + ".pub")
    for each in (path, public_path):
        if each.exists():
            raise ConfigurationError(f"{each} exists and is left as it is: name another file")
    key = private_key.generate()
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write_new(path, private_pem, _PRIVATE_MODE)
    _write_new(public_path, public_pem, 0o644)
    return public_path, _key_id(key.public_key())


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with open_to_write(path, "xb", permissions=mode) as file:
        file.write(data)
        sync_file(file)


def read_signer(path: Path) -> Signer:
    """Read a private key.

    Raises: ConfigurationError for a file that cannot be read, holds something else, or that others may read.
    """
    private_key, serialization = _library()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra

    data = _read(path)
    if path.stat().st_mode & 0o077:
        raise ConfigurationError(f"the key {path} can be read by others: run `chmod 600 {path}`")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it wants a password
        raise ConfigurationError(f"{path} holds no private key in PEM without a password") from error
    if not isinstance(key, private_key):
        raise ConfigurationError(f"{path} holds a key of another kind: seals are signed with Ed25519")
    return Signer(key)


def read_trusted(paths: Iterable[Path]) -> TrustedKeys:
    """Read public keys, one a file.

    Raises: ConfigurationError for a file that cannot be read or holds something else.
    """
    _, serialization = _library()  # first: it says what to install
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    found: dict[str, Ed25519PublicKey] = {}
    for path in paths:
        try:
            key = serialization.load_pem_public_key(_read(path))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigurationError(f"{path} holds no public key in PEM that can be used here") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigurationError(f"{path} holds a key of another kind: seals are signed with Ed25519")
        found[_key_id(key)] = key
    return TrustedKeys(found)


def _read(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(_KEY_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"the key {path} cannot be read: {error.strerror}") from error


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _library() -> tuple[type[Ed25519PrivateKey], ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )
    except ImportError as error:
        raise ConfigurationError(
            "seals need the library cryptography: install it with pip install 'jobledger[seals]'"
        ) from error
    return Ed25519PrivateKey, serialization

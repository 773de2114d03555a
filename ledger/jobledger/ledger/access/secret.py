"""The text of a key: `jl_<id>_<secret>`. The secret is 32 random bytes; only their sha256 is ever stored."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import secrets
import string
from typing import Final, NamedTuple

_ID_CHARACTERS: Final = string.ascii_lowercase + string.digits
_ID_LENGTH: Final = 12
_SECRET_BYTES: Final = 32
#: How many keys are remembered as read, since a client sends its key with each request.
_READ_MAX: Final = 1_024
#: The last of the 43 characters holds only four bits, so only sixteen characters may stand there: any other would be a
#: second way to write the same secret.
_TEXT: Final = re.compile(
    r"jl_(?P<id>[a-z0-9]{12})_(?P<secret>[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048])", flags=re.ASCII
)


class NewKey(NamedTuple):
    """A key that was just made. The text is for whoever asked for it, once, and for nobody else."""

    key: str  #: its id
    text: str  #: what its holder sends
    sha256: str  #: what the ledger holds


class ShownKey(NamedTuple):
    """What somebody sent as a key, without the secret itself."""

    key: str  #: the id that it names
    sha256: str  #: of the secret


def new_key(key: str | None = None) -> NewKey:
    """Return a key of the operating system's randomness; `key`: the id of one that gets another secret."""
    key = key or "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_bytes(_SECRET_BYTES)
    text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return NewKey(key, f"jl_{key}_{text}", hashlib.sha256(secret).hexdigest())


@functools.lru_cache(maxsize=_READ_MAX)
def read_key(text: str) -> ShownKey | None:
    """Return the id and the digest of what somebody sent; None for what has not the form of a key."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    # Plain sha256 is enough: nobody can try out 2^256 secrets, so a slow hash would only cost each request its time.
    secret = base64.urlsafe_b64decode(found["secret"] + "=")
    return ShownKey(found["id"], hashlib.sha256(secret).hexdigest())

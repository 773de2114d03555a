"""The key of an account: it opens a gateway on this machine while the ledger has no keys, and is stored in no ledger.

It lies in a file that nobody else can read, as the header that programs send: `curl -H @FILE` sends it, and no list of
processes shows it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from jobledger.ledger.access.secret import new_key, read_key
from jobledger.ledger.files import make_folder, open_file, write_once
from jobledger.ledger.model.errors import ConfigurationError

#: The id of every such key. The ledger's keys have random ones.
ACCOUNT: Final = "localaccount"
#: Its file, in the data folder.
ACCOUNT_FILE: Final = "gateway-authorization"
#: What a machine goes by in addresses that lead to itself.
THIS_MACHINE: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_HEAD: Final = "Authorization: Bearer "
_FILE_BYTES_MAX: Final = 1_024


def make_account_key(path: Path) -> str:
    """Return the key in a file, after making both where they are missing; whoever makes it first makes it for all.

    Raises: ConfigurationError, as `read_account_key`.
    """
    try:
        if not path.exists():
            make_folder(path.parent)
            write_once(path, f"{_HEAD}{new_key(ACCOUNT).text}\n".encode())
    except OSError as error:
        raise ConfigurationError(
            f"the key of this account cannot be kept in {path}: {error.strerror or error}"
        ) from error
    return read_account_key(path)


def read_account_key(path: Path) -> str:
    """Return the key in a file.

    Raises: ConfigurationError, where it cannot be read, holds none, or is not this account's alone.
    """
    try:
        with open_file(path, bytes_max=_FILE_BYTES_MAX) as file:
            found, text = os.fstat(file.fileno()), file.read().decode(errors="replace").strip()
    except OSError as error:
        raise ConfigurationError(
            f"the key of this account in {path} cannot be read: {error.strerror or error}"
        ) from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"{path} is not this account's alone, so others may know the key in it: delete it, and another is made"
        )
    key = text.removeprefix(_HEAD)
    shown = read_key(key)
    if shown is None or shown.key != ACCOUNT:
        raise ConfigurationError(f"{path} holds no key of an account: delete it, and one is made")
    return key

"""Contexts of the `nats` command: named files with the address of a server and the credentials for it. Only read.

Source: ADR-21 of nats-io/nats-architecture-and-design, and `natscontext` of nats-io/jsm.go.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import ConfigurationError

_FILE_BYTES_MAX: Final = 1 << 20
_SUFFIX: Final = ".json"
_LISTED_MAX: Final = 20


class _Context(msgspec.Struct, kw_only=True):
    """The fields of a file that are used here; a person may have added others."""

    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    inbox_prefix: str = ""
    # The fields below are refused if given: without them the client would reach another server, or none.
    nsc: str = ""
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    user_jwt: str = ""
    user_seed: str = ""
    socks_proxy: str = ""
    tls_first: bool = False


#: Field of a context -> setting of `connect`.
_SETTINGS: Final = {
    "url": "url",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "ca": "tls_ca",
    "cert": "tls_cert",
    "key": "tls_key",
    "inbox_prefix": "inbox_prefix",
}
_FILES: Final = ("creds", "nkey", "ca", "cert", "key")
_REFUSED: Final = tuple(name for name in _Context.__struct_fields__ if name not in _SETTINGS)


def settings_of_context(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of `connect` in a context; `variables`: those of the environment, which name its folder.

    Raises: ConfigurationError if there is no context of this name, or its settings cannot be used.
    """
    folder = _folder(variables)
    if not name or ".." in name or "/" in name or os.sep in name:
        raise ConfigurationError(f"context {name[:80]!r} is no name of a context of the `nats` command")
    path = folder / f"{name}{_SUFFIX}"
    try:
        with open_file(path, bytes_max=_FILE_BYTES_MAX) as file:
            found = msgspec.json.decode(file.read(), type=_Context)
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no context {name!r}: {_known(folder)}") from error
    except OSError as error:
        raise ConfigurationError(f"context {path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"context {path} is none of the `nats` command: {error}") from error
    return _settings(name, found, variables)


def _settings(name: str, found: _Context, variables: Mapping[str, str]) -> dict[str, str]:
    for refused in _REFUSED:
        if getattr(found, refused):
            raise ConfigurationError(
                f"context {name!r} sets {refused}, which is not supported: "
                "give server and credentials without a context"
            )
    said: dict[str, Any] = {field: getattr(found, field) for field in _SETTINGS}
    for field in _FILES:
        said[field] = _path(name, field, said[field], variables)
    return {_SETTINGS[field]: value for field, value in said.items() if value}


def _path(name: str, field: str, value: str, variables: Mapping[str, str]) -> str:
    if "://" in value:
        raise ConfigurationError(
            f"{field} of context {name!r} is {value.partition('://')[0]}://...: only the path of a file is supported"
        )
    home = variables.get("HOME", "")
    return f"{home}{value[1:]}" if home and value.startswith("~/") else value


def _folder(variables: Mapping[str, str]) -> Path:
    above = variables.get("XDG_CONFIG_HOME") or Path(variables.get("HOME") or Path.home(), ".config")
    return Path(above, "nats", "context")


def _known(folder: Path) -> str:
    names = sorted(each.stem for each in folder.glob(f"*{_SUFFIX}"))
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    listed = f"{', '.join(names[:_LISTED_MAX])}{more}" if names else "none"
    return f"known in {folder} are {listed} (`nats context add` makes one)"

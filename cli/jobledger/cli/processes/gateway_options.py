"""Options of `jobledger gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobledger.cli.options import setting
from jobledger.cli.times import seconds
from jobledger.workers.supervision.supervisor import PROCESSES_MAX

Port = Annotated[
    int,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        envvar="JOBLEDGER_GATEWAY_PORT",
        metavar="PORT",
        help="Port to listen on; 0 takes a free one.",
    ),
]
Host = Annotated[
    str,
    typer.Option("--host", envvar="JOBLEDGER_GATEWAY_HOST", metavar="HOST", help="Address to listen on."),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        envvar="JOBLEDGER_GRACE_S",
        metavar="SPAN",
        parser=seconds(),
        help="How long requests that run may continue after a stop was requested.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=PROCESSES_MAX,
        envvar="JOBLEDGER_GATEWAY_PROCESSES",
        metavar="N",
        help="Run N processes on the same port and restart any that die. (default: this process alone)",
    ),
]
NoProjector = Annotated[
    bool,
    setting(
        "--no-projector",
        "",
        "Do not follow the ledger: another process keeps the projection's file up to date.",
    ),
]
NoAccessLog = Annotated[bool, setting("--no-access-log", "", "Do not log each request.")]
_HOOKS = "Webhooks"
Keeper = Annotated[
    bool,
    setting(
        "--keeper",
        "",
        "Move old events into the archive, whose folder is on this machine: see `jobledger retention set`.",
        _HOOKS,
    ),
]
NoDeliveries = Annotated[
    bool,
    setting(
        "--no-deliveries",
        "",
        "Send no deliveries, judge no watches and do no acts: another gateway of this ledger does.",
        _HOOKS,
    ),
]
AllowTarget = Annotated[
    list[str] | None,
    setting(
        "--allow-target",
        "NETWORK",
        "Let webhooks go to this network of yours, too, such as 10.1.0.0/16; may be given again.",
        _HOOKS,
    ),
]
KeyFile = Annotated[
    Path | None,
    setting(
        "--key-file",
        "FILE",
        "What unseals secrets of webhooks and routes: `webhooks keygen` makes it.",
        _HOOKS,
    ),
]
SecretsFolder = Annotated[
    Path | None,
    setting(
        "--secrets",
        "FOLDER",
        "Folder of files that webhooks and routes of keys without `admin` may use as their secrets.",
        _HOOKS,
    ),
]
_HTTPS = "HTTPS and proxies"
HttpsCert = Annotated[
    Path | None,
    setting(
        "--https-cert",
        "FILE",
        "Certificate to show, in PEM; without one the gateway speaks plain HTTP.",
        _HTTPS,
    ),
]
HttpsKey = Annotated[
    Path | None,
    setting("--https-key", "FILE", "Its key, in PEM. (default: in the same file)", _HTTPS),
]
BehindProxy = Annotated[
    list[str] | None,
    setting(
        "--behind-proxy",
        "ADDRESSES",
        "Proxies that speak HTTPS for this gateway: addresses or networks whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed. Repeat it, or separate several by commas.",
        _HTTPS,
    ),
]

_WHO = "Who asks"
AllowHost = Annotated[
    list[str] | None,
    setting(
        "--allow-host",
        "NAME",
        "Name that clients know this gateway by, as in the address of its pages. Repeat it, or separate several "
        "by commas.",
        _WHO,
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    setting(
        "--allow-origin",
        "ORIGIN",
        "Site whose pages may use the API with a key, as https://tools.example. Repeat it, or separate several "
        "by commas.",
        _WHO,
    ),
]
TrustUserHeader = Annotated[
    str,
    setting(
        "--trust-user-header",
        "NAME",
        "Header in which a proxy says who somebody is; with --trust-from and --people.",
        _WHO,
    ),
]
TrustFrom = Annotated[
    list[str] | None,
    setting(
        "--trust-from", "ADDRESSES", "Addresses or ranges of the proxies that are believed about that.", _WHO
    ),
]
People = Annotated[
    Path | None,
    setting(
        "--people",
        "FILE",
        "What people may do whom a proxy knows: users, groups and everyone, in TOML.",
        _WHO,
    ),
]
SessionKey = Annotated[
    Path | None,
    setting(
        "--session-key",
        "FILE",
        "File of the keys that sign sessions, made where it is missing; gateways that take each other's sessions "
        "share it. (default: one in your data folder)",
        _WHO,
    ),
]
SessionAge = Annotated[
    float,
    typer.Option(
        "--session-age",
        envvar="JOBLEDGER_SESSION_AGE",
        metavar="SPAN",
        parser=seconds(),
        rich_help_panel=_WHO,
        help="How long after logging in a session in a browser ends, however it is used; at most 30d.",
    ),
]

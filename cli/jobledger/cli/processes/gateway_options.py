"""Options of `jobledger gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option(
        "--no-projector",
        metavar="",
        envvar="JOBLEDGER_NO_PROJECTOR",
        help="Do not follow the ledger: another process keeps the projection's file up to date.",
    ),
]
_HOOKS = "Webhooks"
NoDeliveries = Annotated[
    bool,
    typer.Option(
        "--no-deliveries",
        metavar="",
        envvar="JOBLEDGER_NO_DELIVERIES",
        help="Send no deliveries, judge no watches and do no acts: another gateway of this ledger does.",
        rich_help_panel=_HOOKS,
    ),
]
AllowTarget = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-target",
        metavar="NETWORK",
        envvar="JOBLEDGER_ALLOW_TARGET",
        help="Let webhooks go to this network of yours, too, such as 10.1.0.0/16; may be given again.",
        rich_help_panel=_HOOKS,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        envvar="JOBLEDGER_KEY_FILE",
        help="What unseals secrets of webhooks and routes: `webhooks keygen` makes it.",
        rich_help_panel=_HOOKS,
    ),
]
_HTTPS = "HTTPS and proxies"
HttpsCert = Annotated[
    Path | None,
    typer.Option(
        "--https-cert",
        envvar="JOBLEDGER_HTTPS_CERT",
        metavar="FILE",
        help="Certificate to show, in PEM; without one the gateway speaks plain HTTP.",
        rich_help_panel=_HTTPS,
    ),
]
HttpsKey = Annotated[
    Path | None,
    typer.Option(
        "--https-key",
        envvar="JOBLEDGER_HTTPS_KEY",
        metavar="FILE",
        help="Its key, in PEM. (default: in the same file)",
        rich_help_panel=_HTTPS,
    ),
]
BehindProxy = Annotated[
    list[str] | None,
    typer.Option(
        "--behind-proxy",
        envvar="JOBLEDGER_BEHIND_PROXY",
        metavar="ADDRESSES",
        help="Proxies that speak HTTPS for this gateway: addresses or networks whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed. Repeat it, or separate several by commas.",
        rich_help_panel=_HTTPS,
    ),
]

_WHO = "Who asks"
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        envvar="JOBLEDGER_ALLOW_HOST",
        metavar="NAME",
        help="Name that clients know this gateway by, as in the address of its pages. Repeat it, or separate several "
        "by commas.",
        rich_help_panel=_WHO,
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        envvar="JOBLEDGER_ALLOW_ORIGIN",
        metavar="ORIGIN",
        help="Site whose pages may use the API with a key, as https://tools.example. Repeat it, or separate several "
        "by commas.",
        rich_help_panel=_WHO,
    ),
]
TrustUserHeader = Annotated[
    str,
    typer.Option(
        "--trust-user-header",
        envvar="JOBLEDGER_TRUST_USER_HEADER",
        metavar="NAME",
        help="Header in which a proxy says who somebody is; with --trust-from and --people.",
        rich_help_panel=_WHO,
    ),
]
TrustFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-from",
        envvar="JOBLEDGER_TRUST_FROM",
        metavar="ADDRESSES",
        help="Addresses or ranges of the proxies that are believed about that.",
        rich_help_panel=_WHO,
    ),
]
People = Annotated[
    Path | None,
    typer.Option(
        "--people",
        envvar="JOBLEDGER_PEOPLE",
        metavar="FILE",
        help="What people may do whom a proxy knows: users, groups and everyone, in TOML.",
        rich_help_panel=_WHO,
    ),
]
SessionKey = Annotated[
    Path | None,
    typer.Option(
        "--session-key",
        envvar="JOBLEDGER_SESSION_KEY",
        metavar="FILE",
        help="File of the keys that sign sessions, made where it is missing; gateways that take each other's sessions "
        "share it. (default: one in your data folder)",
        rich_help_panel=_WHO,
    ),
]

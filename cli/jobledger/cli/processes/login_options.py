"""Options of a gateway for log-ins by a provider, and for the quotas and shares of one key; their readers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from jobledger.cli import options
from jobledger.cli.errors import UsageError
from jobledger.cli.options import setting
from jobledger.cli.times import parse_span

if TYPE_CHECKING:
    from jobledger.gateway.access.oidc import OidcSettings
    from jobledger.gateway.access.rates import Quota
    from jobledger.gateway.shares import Kind, Share

_WHO: Final = "Who asks"
_QUOTA: Final = re.compile(r"(?P<group>[a-z]+)=(?P<count>\d{1,7})/(?P<window>.+)", flags=re.ASCII)
_SHARE: Final = re.compile(r"(?P<kind>[a-z]+)=(?P<each>\d{1,6})/(?P<total>\d{1,6})", flags=re.ASCII)

OidcIssuer = Annotated[
    str,
    setting(
        "--oidc-issuer",
        "URL",
        "Provider of OpenID Connect that people can log in by; with --oidc-client-id and --people.",
        _WHO,
    ),
]
OidcClientId = Annotated[
    str,
    setting("--oidc-client-id", "ID", "What that provider knows this gateway by.", _WHO),
]
OidcClientSecret = Annotated[
    Path | None,
    setting(
        "--oidc-client-secret-file",
        "FILE",
        "File whose first line is the secret that the provider gave.",
        _WHO,
    ),
]
OidcUserClaim = Annotated[
    str,
    setting("--oidc-user-claim", "NAME", "What of the provider's token is a person's name.", _WHO),
]
Quotas = Annotated[
    list[str] | None,
    setting(
        "--quota",
        "GROUP=N/SPAN",
        "How many requests of a group (read, write, bulk, login) one key may send in a time, such as "
        "write=600/10s. Repeat it, or separate several by commas.",
        _WHO,
    ),
]
Shares = Annotated[
    list[str] | None,
    setting(
        "--share",
        "KIND=EACH/TOTAL",
        "How much of a kind (requests, anonymous, waits, streams, readers, uploads, past, connections) one key, "
        "or one address, and all together may have open at once, such as waits=100/500. Repeat it, or separate "
        "several by commas.",
        _WHO,
    ),
]


def provider(issuer: str, client_id: str, secret: Path | None, user_claim: str) -> OidcSettings | None:
    """Return the provider that the options name, or None. Raises: ConfigurationError, UsageError."""
    # Imported here: it needs the extra, which was checked before.
    from jobledger.gateway.access.oidc import OidcSettings  # noqa: PLC0415

    if issuer:
        return OidcSettings(issuer=issuer, client_id=client_id, client_secret=secret, user_claim=user_claim)
    if client_id or secret is not None:
        raise UsageError(
            "--oidc-client-id and --oidc-client-secret-file belong to --oidc-issuer: give it too"
        )
    return None


def quotas(given: list[str] | None) -> dict[str, Quota]:
    """Return the quotas in the options, by group. Raises: ConfigurationError, UsageError."""
    from jobledger.gateway.access.rates import QUOTAS, Quota  # noqa: PLC0415 - as above

    found: dict[str, Quota] = {}
    for text in options.split(given):
        said = _QUOTA.fullmatch(text)
        if said is None or said["group"] not in QUOTAS:
            known = ", ".join(QUOTAS)
            raise UsageError(f"--quota {text[:60]!r} is none of {known} with N/SPAN, such as write=600/10s")
        window_s = parse_span("--quota", said["window"]).total_seconds()
        found[said["group"]] = Quota(count=int(said["count"]), window_s=window_s)
    return found


def shares(given: list[str] | None) -> dict[Kind, Share]:
    """Return the shares in the options, by kind. Raises: ConfigurationError, UsageError."""
    from jobledger.gateway.shares import KINDS, Share  # noqa: PLC0415 - as above

    found: dict[Kind, Share] = {}
    kinds: dict[str, Kind] = {each: each for each in KINDS}
    for text in options.split(given):
        said = _SHARE.fullmatch(text)
        kind = kinds.get(said["kind"]) if said is not None else None
        if said is None or kind is None:
            known = ", ".join(KINDS)
            raise UsageError(
                f"--share {text[:60]!r} is none of {known} with EACH/TOTAL, such as waits=100/500"
            )
        found[kind] = Share(each=int(said["each"]), total=int(said["total"]))
    return found

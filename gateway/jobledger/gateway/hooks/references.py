"""Rules for references to secrets: `manage` allows the gateway's own folder and variables, `admin` allows all."""

from __future__ import annotations

from collections.abc import Iterable

from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.hooks.route import RouteDefinition
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.webhooks.secrets import OPEN_VARIABLES, Secrets


def require_secrets(principal: Principal, secrets: Secrets, references: Iterable[str]) -> None:
    """Refuse references outside of the gateway's own places, unless `principal` may `admin` everywhere. Raises: ProblemError."""
    if all(map(secrets.is_open, references)) or (principal.may("admin") and principal.is_everywhere):
        return
    raise ProblemError(
        "JOB_ACCESS_DENIED",
        f"{principal.name} lacks the permission 'admin', which a secret outside of the gateway's folder --secrets and of "
        f"its variables {OPEN_VARIABLES}* needs: have it put there, or ask who manages the keys",
    )


def require_route(
    principal: Principal, secrets: Secrets, before: RouteDefinition | None, wanted: RouteDefinition
) -> None:
    """Refuse a route as `require_secrets` does, but allow its present secrets if its `signature` stays the same.

    Raises: ProblemError (JOB_ACCESS_DENIED).
    """
    is_same = before is not None and before.signature == wanted.signature
    known = before.secrets if before is not None and is_same else ()
    require_secrets(principal, secrets, set(wanted.secrets) - set(known))

"""Keys: who may do what over HTTP, and when each was used last."""

from __future__ import annotations

from jobledger.admin.keys import KeyInfo, MadeKey, list_keys
from jobledger.gateway.pages.page import OwnPage, Viewer, When
from jobledger.gateway.pages.shell import PageFacts, shell_of
from jobledger.ledger.model.rights.grants import PERMISSIONS, ROLES


class Query(When, frozen=True, kw_only=True):
    """The filter of keys."""

    ended: bool = False  #: include keys that expired or were revoked


class Keys(PageFacts, frozen=True, kw_only=True):
    """The page."""

    keys: list[KeyInfo]
    ended: bool
    roles: tuple[str, ...]
    permissions: tuple[str, ...]
    made: MadeKey | None = None  #: a key that was just made: this page alone shows its secret


async def keys(looked: Viewer, *, query: Query) -> Keys:
    """Return the keys by name, read from the ledger. Raises: ProblemError."""
    return await _shown(looked, ended=query.ended)


async def told(looked: Viewer, made: MadeKey) -> OwnPage:
    """Return the page that shows the secret of a new key. Raises: ProblemError."""
    return OwnPage("keys.html", await _shown(looked, made=made))


async def _shown(looked: Viewer, *, ended: bool = False, made: MadeKey | None = None) -> Keys:
    """Return the page of keys, with a key that was just made. Raises: ProblemError."""
    looked.principal.require_everywhere("admin")
    found = await list_keys(looked.gateway.ledger, ended=ended)
    shell = await shell_of(looked)
    return Keys(
        shell=shell, keys=found, ended=ended, roles=tuple(ROLES), permissions=tuple(PERMISSIONS), made=made
    )

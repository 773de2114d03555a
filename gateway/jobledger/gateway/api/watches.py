"""Watches: figures that are held against bounds, and which of them fire."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from jobledger.admin.hooks.watches import (
    ShownWatch,
    WatchInfo,
    list_watches,
    remove_watch,
    set_watch,
    show_watch,
)
from jobledger.gateway.api.asking import Text
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import Endpoint
from jobledger.ledger.model.hooks.watch import Figure, WatchDefinition


class Watches(msgspec.Struct, frozen=True, kw_only=True):
    """The watches that are set, those that fire first."""

    items: list[WatchInfo]


class GivenWatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a watch is to look at, and when it fires."""

    figure: Figure
    queue: str = ""  #: only jobs of this queue
    task: str = ""  #: only jobs of this task
    above: float | None = None  #: it fires while the figure is greater
    below: float | None = None  #: it fires while the figure is less
    for_s: float = 0.0  #: how long the figure must be so before it fires
    window_s: int = 300  #: how far back rates and waits are looked at
    reason: Text = ""  #: kept in the ledger with who said so


class RemovingWatch(msgspec.Struct, frozen=True, kw_only=True):
    """Why."""

    reason: Text = ""  #: kept in the ledger with who said so


async def list_all(asked: Asked) -> Watches:
    """List the watches, those that fire first, as the ledger says now."""
    asked.principal.require_everywhere("view")
    return Watches(items=await list_watches(asked.gateway.ledger))


async def show(asked: Asked, name: str) -> ShownWatch:
    """Show a watch, and when it fired."""
    asked.principal.require_everywhere("view")
    return await show_watch(asked.gateway.ledger, name)


async def put(asked: Asked, name: str, *, body: GivenWatch) -> WatchInfo:
    """Set what a watch looks at. One that fires stops firing until its figure is found beyond the bound again."""
    asked.principal.require_everywhere("manage")
    given = {field: getattr(body, field) for field in body.__struct_fields__ if field != "reason"}
    return await set_watch(
        asked.gateway.ledger, name, WatchDefinition(**given), reason=body.reason, by=asked.principal.name
    )


async def delete(asked: Asked, name: str, *, query: RemovingWatch) -> WatchInfo:
    """End a watch."""
    asked.principal.require_everywhere("manage")
    return await remove_watch(asked.gateway.ledger, name, reason=query.reason, by=asked.principal.name)


def _endpoint(method: Any, path: str, handler: Any, summary: str, returns: Any, **more: Any) -> Endpoint:
    given: dict[str, Any] = {"permission": "view", "tag": "watches", **more}
    return Endpoint(
        method=method, path=f"/v1/watches{path}", handler=handler, summary=summary, returns=returns, **given
    )


_PUT: Final = ("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT")

ENDPOINTS: Final = (
    _endpoint("GET", "", list_all, "List the watches", Watches, problems=("LEDGER_DAMAGED",)),
    _endpoint(
        "GET",
        "/{name}",
        show,
        "Show a watch, and when it fired",
        ShownWatch,
        problems=("NOT_FOUND", "LEDGER_DAMAGED"),
    ),
    _endpoint(
        "PUT",
        "/{name}",
        put,
        "Have a watch look at something",
        WatchInfo,
        permission="manage",
        body=GivenWatch,
        problems=_PUT,
    ),
    _endpoint(
        "DELETE",
        "/{name}",
        delete,
        "End a watch",
        WatchInfo,
        permission="manage",
        query=RemovingWatch,
        problems=("LEDGER_FULL", "LEDGER_BUSY", "NOT_FOUND"),
    ),
)

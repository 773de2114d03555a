"""The caller, and the caller's rights. Acts on keys are declared in `jobledger.admin.verbs.keys`."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.admin.keys import in_order
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Endpoint
from jobledger.ledger.model.rights.grants import Permission


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, and the caller's rights."""

    name: str  #: the name that events have in `by`
    key: str  #: the id of the key, "" for a caller without one
    permissions: tuple[Permission, ...]
    queues: tuple[str, ...]  #: patterns of queues' names; none: every queue
    tasks: tuple[str, ...]  #: patterns of tasks' names; none: every task


async def show_me(asked: ApiRequest) -> Me:
    """Return the caller and their rights."""
    principal, scope = asked.principal, asked.principal.scope
    return Me(
        name=principal.name,
        key=principal.key_id,
        permissions=in_order(principal.permissions),
        queues=scope.queues,
        tasks=scope.tasks,
    )


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/v1/me",
        permission=None,
        handler=show_me,
        summary="Show who asks and what they may do",
        tag="keys",
        returns=Me,
    ),
)

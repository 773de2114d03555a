"""Whether one part of a fleet works, by one quick look: for the health check of a container."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Collection
from typing import Final, Literal

import anyio.to_thread
import msgspec

from jobledger.admin.replicas import copies_of
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.nats.streams import find_stream

Role = Literal["server", "worker", "gateway"]

_GATEWAY_LIMIT_S: Final = 5.0
_SAID_BYTES_MAX: Final = 300


class RoleHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    role: Role
    ok: bool
    found: str  #: a sentence


async def look_at_server(ledger: Ledger) -> RoleHealth:
    """Return whether the server that is connected to serves the ledger. Raises: UnreachableError."""
    stream = ledger.names.ledger_stream
    info = await find_stream(ledger.inbox, stream)
    if info is None:
        return RoleHealth(role="server", ok=False, found=f"the stream {stream} was deleted")
    copies = copies_of(stream, info)
    found = f"the ledger answers: {info.state.last_sequence:,} events"
    if copies.replicas > 1:
        there = sum(each.current and not each.away for each in copies.others) + 1
        found += f", led by {copies.leader or 'nobody'}, {there} of {copies.replicas} copies up to date"
    return RoleHealth(role="server", ok=copies.replicas == 1 or bool(copies.leader), found=found)


async def look_at_workers(ledger: Ledger, host: str, queues: Collection[str] = ()) -> RoleHealth:
    """Return whether a worker of this host holds a lease; with `queues`, for each of them one that takes its jobs.

    Processes that host the reactors alone count where their queue is named. A worker that is dead or stuck loses its lease
    within the lease time. Raises: UnreachableError.
    """
    here = [each for each in await ledger.leases.all() if each.host == host and not each.stopped]
    alive = [each for each in here if queues or each.queues != (BUILT_IN_QUEUE,)]
    served = {queue for each in alive for queue in each.queues}
    missing = [queue for queue in queues if queue not in served]
    if not alive:
        return RoleHealth(role="worker", ok=False, found=f"no worker of the host {host} is alive")
    if missing:
        found = f"no worker of the host {host} takes jobs of {', '.join(missing)}"
        return RoleHealth(role="worker", ok=False, found=found)
    number = "1 worker" if len(alive) == 1 else f"{len(alive)} workers"
    return RoleHealth(
        role="worker", ok=True, found=f"{number} of the host {host}: {', '.join(sorted(served))}"
    )


async def look_at_gateway(url: str) -> RoleHealth:
    """Return whether a gateway is ready for requests, as its `/readyz` says. Raises: InvalidInputError for no address."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInputError(f"{url[:80]!r} is no address: write http://HOST:PORT or https://HOST")
    return await anyio.to_thread.run_sync(_ask_gateway, url.rstrip("/"))


def _ask_gateway(url: str) -> RoleHealth:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_GATEWAY_LIMIT_S):  # noqa: S310 - its scheme was looked at
            return RoleHealth(role="gateway", ok=True, found=f"the gateway at {url} is ready")
    except urllib.error.HTTPError as error:
        said = error.read(_SAID_BYTES_MAX).decode(errors="replace").strip()
        return RoleHealth(role="gateway", ok=False, found=f"the gateway at {url} is not ready: {said}")
    except (OSError, ValueError) as error:
        return RoleHealth(role="gateway", ok=False, found=f"no gateway answers at {url}: {error}")

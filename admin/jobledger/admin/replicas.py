"""The copies of an environment's streams in a cluster: where they lie, and the change of their number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from jobledger.admin.upgrades import keep_form
from jobledger.ledger import Ledger
from jobledger.ledger.config import REPLICAS
from jobledger.ledger.model.errors import (
    InvalidInputError,
    JetStreamDisabledError,
    RefusedError,
    ServerUnreachableError,
    UnreachableError,
)
from jobledger.ledger.nats.infos import StreamInfo
from jobledger.ledger.nats.streams import find_stream, give_replicas

_LOOK_S: Final = 0.2
_LIMIT_S: Final = 6.0  #: longer than any request to a server takes
_SECOND_NS: Final = 1_000_000_000
#: How long a replica may be silent and count as there.
_AWAY_NS: Final = 10 * _SECOND_NS


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a stream on another server than its leader's."""

    server: str
    current: bool  #: it has what the leader has, or nearly
    behind: int  #: how many changes it lacks
    away: bool  #: its server does not answer
    silent_s: float  #: time since the leader heard of it, or became leader


class StreamCopies(msgspec.Struct, frozen=True, kw_only=True):
    """A stream and its copies."""

    stream: str
    replicas: int  #: how many copies it is to have
    leader: str  #: the server that takes its writes; "" while none does
    others: list[Replica]

    @property
    def is_whole(self) -> bool:
        """Whether every copy is there and has what the leader has."""
        return (
            bool(self.leader)
            and len(self.others) == self.replicas - 1
            and all(each.current and not each.away for each in self.others)
        )


class StreamAway(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that no server answers for."""

    stream: str
    error: str


def copies_of(stream: str, info: StreamInfo) -> StreamCopies:
    """Return the copies of a stream, as its leader reports them."""
    cluster = info.cluster or {}
    others: Iterable[dict[str, Any]] = cluster.get("replicas") or []
    return StreamCopies(
        stream=stream,
        replicas=int(info.config.get("num_replicas", 1)),
        leader=str(cluster.get("leader", "")),
        others=[
            Replica(
                server=str(each.get("name", "")),
                current=bool(each.get("current", False)),
                behind=int(each.get("lag", 0)),
                away=bool(each.get("offline", False)) or int(each.get("active", 0)) > _AWAY_NS,
                silent_s=int(each.get("active", 0)) / _SECOND_NS,
            )
            for each in others
        ],
    )


async def list_copies(ledger: Ledger, *, limit_s: float = _LIMIT_S) -> list[StreamCopies | StreamAway]:
    """Return every stream of the environment that is there, the ledger first.

    One that no server answers for within `limit_s` counts as away.

    Raises: RefusedError off a cluster; ServerUnreachableError without a connection.
    """
    _require_cluster(ledger)
    found = await asyncio.gather(*(_look(ledger, stream, limit_s) for stream in ledger.names.streams))
    if not ledger.connection.is_connected:  # a lost connection is no sign that streams are away
        raise ServerUnreachableError("there is no connection to a server")
    return [each for each in found if each is not None]


async def change_replicas(
    ledger: Ledger,
    replicas: int,
    *,
    limit_s: float,
    on_stream: Callable[[StreamCopies, int, int], None] = lambda _stream, _done, _total: None,
) -> list[StreamCopies]:
    """Give every stream of the environment this number of copies; workers and clients go on meanwhile.

    One stream is changed after the other, and the next one only when all copies of the last have what its leader has.
    A stream that has its copies already is left alone, so the same call goes on after an interruption. `on_stream` is
    called for each stream that is done, with its number and how many there are. Consumers follow their stream.

    Raises: InvalidInputError for another number than 1, 3 and 5; RefusedError off a cluster, or where too few servers
    answer; ServerUnreachableError if a stream is not whole within `limit_s`.
    """
    changed: list[StreamCopies] = []
    todo = await plan_replicas(ledger, replicas)
    for number, each in enumerate(todo, start=1):
        changed.append(await _change(ledger, each.stream, replicas, limit_s))
        on_stream(changed[-1], number, len(todo))
    await keep_form(ledger)
    return changed


async def plan_replicas(ledger: Ledger, replicas: int) -> list[StreamCopies]:
    """Return the streams that `change_replicas` would change or wait for. Raises: as that."""
    if replicas not in REPLICAS:
        raise InvalidInputError(f"replicas must be 1, 3 or 5, got {replicas!r}")
    found = await list_copies(ledger)
    for each in found:
        if isinstance(each, StreamAway):
            raise ServerUnreachableError(
                f"{each.stream} has no leader: {each.error}; bring its servers back first"
            )
    there = [each for each in found if isinstance(each, StreamCopies)]
    return [each for each in there if each.replicas != replicas or not each.is_whole]


def _require_cluster(ledger: Ledger) -> None:
    if not ledger.connection.is_clustered:
        raise RefusedError(
            "this server is alone, so every stream has one copy: see docs/cluster.md on how to make it one of three"
        )


async def _look(ledger: Ledger, stream: str, limit_s: float) -> StreamCopies | StreamAway | None:
    try:
        async with asyncio.timeout(limit_s):
            info = await find_stream(ledger.inbox, stream)
    except (JetStreamDisabledError, UnreachableError) as error:
        return StreamAway(stream=stream, error=str(error))
    except TimeoutError:
        return StreamAway(stream=stream, error=f"no server answered for it within {limit_s:g} s")
    return None if info is None else copies_of(stream, info)


async def _change(ledger: Ledger, stream: str, replicas: int, limit_s: float) -> StreamCopies:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    found: StreamCopies | None = None
    while loop.time() < deadline:
        with contextlib.suppress(JetStreamDisabledError, UnreachableError):  # the stream elects a leader
            found = copies_of(stream, await give_replicas(ledger.inbox, stream, replicas))
            if found.is_whole:
                return found
        await asyncio.sleep(_LOOK_S)
    raise ServerUnreachableError(
        f"{stream} does not have {replicas} up-to-date copies after {limit_s:g} s{_lacks(found)}: "
        "run the same command again to go on"
    )


def _lacks(found: StreamCopies | None) -> str:
    late = [] if found is None else [each for each in found.others if each.away or not each.current]
    said = [f"{each.server} {'is away' if each.away else f'lacks {each.behind:,}'}" for each in late]
    return f" ({', '.join(said)})" if said else ""

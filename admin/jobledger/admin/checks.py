"""What `doctor` looks at: each check says what it found and, if that is not well, what to do. Changes nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from jobledger.admin.amounts import duration, size
from jobledger.admin.replicas import StreamCopies, copies_of
from jobledger.ledger.model.errors import StreamMismatchError
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats.connection import SERVER_VERSION_SAFE, Connection
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo, StreamInfo
from jobledger.ledger.nats.streams import StreamSpec, account_usage, check_settings, find_stream

Level = Literal["ok", "info", "warn", "fail"]

_QUEUES_SHOWN_MAX: Final = 12
_CLOCK_WARN_S: Final = 1.0
_CLOCK_FAIL_S: Final = 60.0
_FULL_WARN: Final = 0.8
_DISK_WARN_BYTES: Final = 1 << 30


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    check: str
    status: Level
    found: str
    advice: str = ""  #: what to do; "" when all is well


async def check_server(connection: Connection, shown_url: str) -> list[Check]:
    """Look at round trip and version of the server we are connected to."""
    started = time.perf_counter()
    await connection.flush()
    round_trip_ms = (time.perf_counter() - started) * 1000
    version = connection.connected_server_version
    number = f"{version.major}.{version.minor}.{version.patch}"
    safe = (version.major, version.minor) >= SERVER_VERSION_SAFE
    advice = "" if safe else "use 2.15 or newer: before, `sync_interval: always` can lose acknowledged events"
    return [
        Check(check="server", status="ok", found=f"{shown_url} answers, round trip {round_trip_ms:.1f} ms"),
        Check(check="version", status="ok" if safe else "warn", found=f"nats-server {number}", advice=advice),
    ]


async def check_jetstream(inbox: Inbox) -> Check:
    """Look at what the account has used of its limits. Raises: UnreachableError."""
    info = await account_usage(inbox)
    used, limit = info.storage, info.limits.max_storage
    counts = f"{info.streams} streams, {info.consumers} consumers, {size(used)} stored"
    if limit > 0 and used > _FULL_WARN * limit:
        advice = "raise the account's max_file or delete streams that are not needed"
        return Check(check="jetstream", status="warn", found=f"{counts} of {size(limit)}", advice=advice)
    return Check(check="jetstream", status="ok", found=counts)


async def check_stream(inbox: Inbox, spec: StreamSpec) -> tuple[Check, bool]:
    """Look at one stream's settings and size; return also whether it exists. Raises: UnreachableError."""
    info = await find_stream(inbox, spec.name)
    name = f"stream {spec.name}"
    if info is None:
        advice = "the first `jobledger up`, `worker` or `enqueue` makes it"
        return Check(check=name, status="warn", found="does not exist yet", advice=advice), False
    try:
        check_settings(spec, info.config)
    except StreamMismatchError as error:
        found = "; ".join(error.differences)
        return Check(check=name, status="fail", found=found, advice=str(error).rpartition("): ")[2]), True
    check = _fullness(name, info)
    if check.status == "ok" and _is_on_cluster(info):
        check = _copies(check, copies_of(spec.name, info))
    return check, True


def _is_on_cluster(info: StreamInfo) -> bool:
    """Return whether a stream's server is one of several: a single server names a leader, but no cluster."""
    return bool((info.cluster or {}).get("name"))


def _copies(check: Check, copies: StreamCopies) -> Check:
    """Add to a check how many copies the stream has, and what is wrong with them."""
    if copies.replicas == 1:
        advice = "the loss of that server stops what needs it: `jobledger cluster replicas 3`"
        return msgspec.structs.replace(
            check, status="warn", found=f"{check.found}, one copy on {copies.leader}", advice=advice
        )
    found = f"{check.found}, {copies.replicas} copies"
    if copies.is_whole:
        return msgspec.structs.replace(check, found=found)
    advice = "see which with `jobledger cluster show`, and bring the server back before another one is lost"
    return msgspec.structs.replace(
        check, status="warn", found=f"{found}, not all of them up to date", advice=advice
    )


def _fullness(name: str, info: StreamInfo) -> Check:
    state, limit = info.state, int(info.config.get("max_bytes", -1))
    found = f"{state.messages:,} messages, {size(state.bytes)}"
    if limit <= 0:
        return Check(check=name, status="ok", found=found)
    found += f" of {size(limit)}"
    if state.bytes > _FULL_WARN * limit:
        advice = (
            "a full ledger refuses events: `jobledger audit archive` makes room, `jobledger ledger resize SIZE` gives it"
            if name.endswith("LEDGER")
            else "raise max_bytes of the stream (and max_file_store of the server): a full one refuses messages"
        )
        return Check(check=name, status="warn", found=found, advice=advice)
    return Check(check=name, status="ok", found=found)


async def check_consumers(inbox: Inbox, stream: str) -> list[Check]:
    """Look at the queues: how many jobs wait and are delivered, a line each; the busiest dozen, then a number."""
    listed = await list_consumers(inbox, stream)
    work = [each for each in listed if each.name.startswith("work_")]
    if not work:
        advice = "a worker makes those of its queues when it starts"
        return [
            Check(check="queues", status="warn", found="no queue has a worker's consumer yet", advice=advice)
        ]
    queues: dict[str, list[ConsumerInfo]] = {}
    for each in work:  # work_<queue>_<priority>
        queues.setdefault(each.name.removeprefix("work_").rpartition("_")[0], []).append(each)
    busy = sorted(queues.items(), key=lambda item: (-sum(each.pending for each in item[1]), item[0]))
    lines = [_queue(name, lanes) for name, lanes in busy[:_QUEUES_SHOWN_MAX]]
    left = len(queues) - len(lines)
    if left > 0:
        said = f"and {left:,} more, less busy: `jobledger queues list` shows all"
        lines.append(Check(check="queues", status="ok", found=said))
    return lines


def _queue(queue: str, lanes: Sequence[ConsumerInfo]) -> Check:
    """Look at the consumers of one queue, one for each priority: one line for all, and advice on the worst of them."""
    pending, out = sum(each.pending for each in lanes), sum(each.ack_pending for each in lanes)
    found = f"{pending:,} to be delivered, {out:,} with workers"
    name = f"queue {queue}"
    limit = next((each for each in map(_limit_reached, lanes) if each), 0)
    if limit:
        advice = (
            f"max_ack_pending ({limit:,}) is reached: start more workers, or find out why jobs do not end"
        )
        return Check(check=name, status="warn", found=found, advice=advice)
    if any(each.pending and not each.waiting and not each.ack_pending for each in lanes):
        advice = "no worker asks for these jobs: start `jobledger worker` for this queue"
        return Check(check=name, status="warn", found=found, advice=advice)
    return Check(check=name, status="ok", found=found)


def _limit_reached(info: ConsumerInfo) -> int:
    limit = int(info.config.get("max_ack_pending", 0))
    return limit if info.ack_pending >= limit else 0


async def check_clock(inbox: Inbox, stream: str) -> Check:
    """Look at the difference between the server's clock and ours, in seconds, less half a round trip."""
    before = time.time()
    answer = await find_stream(inbox, stream)
    middle = (before + time.time()) / 2
    text = "" if answer is None else answer.ts
    if not text:
        return Check(
            check="clock",
            status="warn",
            found="the server does not report its time",
            advice="compare by hand",
        )
    return clock_apart("clock", server_time(text).timestamp() - middle)


def clock_apart(check: str, apart_s: float) -> Check:
    """Judge how many seconds a server's clock is ahead of this machine's."""
    found = f"the server is {duration(abs(apart_s))} {'ahead of' if apart_s > 0 else 'behind'} this machine"
    if abs(apart_s) < _CLOCK_WARN_S:
        return Check(check=check, status="ok", found=found)
    level: Level = "fail" if abs(apart_s) > _CLOCK_FAIL_S else "warn"
    return Check(
        check=check, status=level, found=found, advice="synchronise both clocks, with NTP for instance"
    )


def check_disk(directory: Path) -> Check | None:
    """Look at the free space where the embedded server keeps its store; None if that is not on this machine."""
    if not (directory / "jetstream").is_dir():
        return None
    usage = shutil.disk_usage(directory)
    found = f"{size(usage.free)} free of {size(usage.total)} at {directory}"
    if usage.free < _DISK_WARN_BYTES:
        advice = "make room: with a full disk the server does not answer until it is restarted"
        return Check(check="disk", status="warn", found=found, advice=advice)
    return Check(check="disk", status="ok", found=found)

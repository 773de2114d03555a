"""The bucket LOGS: the log lines of each attempt's code, written by its worker, for people who look for a cause.

A key per attempt and claim, whose newest value has all kept lines. It is no event, and no decision depends on it: if a
worker dies, the lines of its last moments are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from jobledger.ledger.model.errors import LedgerError, ServerUnreachableError
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.streams import StreamSpec, ensure_stream

LOGS_LIFE_S: Final = 7 * 24 * 3600.0
LINE_BYTES_MAX: Final = 8 << 10  #: of the text of one line; a longer text is cut
_NANOSECONDS: Final = 1_000_000_000
_SHARE: Final = 16  # of the ledger's size
_BYTES_MIN: Final = 16 << 20
_TIMEOUT_S: Final = 5.0
_TRIES_MAX: Final = 20
_AGAIN_S: Final = 0.1


class KeptLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line as it is stored."""

    at: float  #: seconds since 1970, by the worker's clock
    level: str
    logger: str
    step: str  #: of a run; "" outside of its steps
    text: str


class KeptLog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored log of one attempt: the newest lines that fit."""

    attempt: int
    worker: str
    trace: str
    lines: tuple[KeptLine, ...]
    cut: int = 0  #: number of older lines that were left out
    ended: bool = False  #: whether the attempt had ended when this was written


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a task logged."""

    at: datetime  #: by the worker's clock
    level: str  #: in lower case: "info"
    logger: str
    text: str
    job: str
    attempt: int
    number: int  #: in its attempt, from 1; those before the first one that is kept were cut
    step: str  #: of a run; "" outside of its steps
    trace: str  #: trace id of the job


class JobLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The log lines of a job's attempts, the oldest first."""

    items: list[LogLine]
    cut: dict[int, int]  #: attempt -> number of its older lines that were not kept, if there are any
    ended: bool  #: whether the newest of these logs is complete; False without a log


def logs_specification(names: Names, *, ledger_bytes_max: int, replicas: int) -> StreamSpec:
    """Return the bucket; the first worker whose task logs something creates it. When it is full, the oldest logs go."""
    return StreamSpec(
        name=_stream(names),
        config={
            "subjects": [_subject(names, ">")],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_age": int(LOGS_LIFE_S * _NANOSECONDS),
            "max_bytes": max(_BYTES_MIN, ledger_bytes_max // _SHARE),
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "num_replicas": replicas,
        },
        required=("subjects", "max_msgs_per_subject", "allow_direct"),
    )


async def make_bucket(inbox: Inbox, names: Names, *, ledger_bytes_max: int, replicas: int) -> None:
    """Make the bucket where it is missing. Raises: as `ensure_stream`."""
    await ensure_stream(
        inbox, logs_specification(names, ledger_bytes_max=ledger_bytes_max, replicas=replicas)
    )


async def write_log(inbox: Inbox, names: Names, ref: JobRef, epoch: int, log: KeptLog) -> None:
    """Store the log of an attempt, in the place of the earlier one; `epoch`: that of its claim.

    Raises: UnreachableError, PermissionRefusedError, LedgerError.
    """
    subject = _subject(names, f"{ref.queue}.{ref.job_id}.{epoch}")
    try:
        data, _ = await inbox.ask(subject, log, timeout_s=_TIMEOUT_S)
    except ConnectionLostError as error:
        raise ServerUnreachableError(
            "the connection was lost while the log of an attempt was stored"
        ) from error
    if b'"error"' in data:
        raise LedgerError(f"the server refused the log of an attempt: {data[:200].decode()}")


async def read_logs(
    connection: Connection,
    inbox: Inbox,
    names: Names,
    ref: JobRef,
    *,
    attempt: int | None = None,
    step: str | None = None,
) -> JobLogs:
    """Return the log lines of a job's attempts, of one attempt, or of one step; empty if nothing is kept.

    Raises: UnreachableError, LedgerError.
    """
    logs: list[KeptLog] = []
    for data in await _read(connection, inbox, names, _subject(names, f"{ref.queue}.{ref.job_id}.*")):
        with contextlib.suppress(msgspec.MsgspecError):  # a newer version wrote it
            logs += [msgspec.json.decode(data, type=KeptLog)] if data else []
    return _shown(ref, [log for log in logs if attempt in (None, log.attempt)], step)


async def _read(connection: Connection, inbox: Inbox, names: Names, subject: str) -> list[bytes]:
    for left in reversed(range(_TRIES_MAX)):
        try:
            request = {"multi_last": [subject]}
            return [
                data
                for data, _ in await api.direct_get(connection, inbox, _stream(names), request, batch=True)
            ]
        except ConnectionLostError as error:
            if not await _is_there(inbox, names):
                break
            if not left:
                raise ServerUnreachableError("the bucket of logs gave no answer") from error
            await asyncio.sleep(_AGAIN_S)  # the stream was just created, or is moving
    return []


async def _is_there(inbox: Inbox, names: Names) -> bool:
    try:
        await api.stream_info(inbox, _stream(names))
    except api.MissingError:
        return False
    return True


def _shown(ref: JobRef, logs: Sequence[KeptLog], step: str | None) -> JobLogs:
    logs = sorted(logs, key=lambda log: (log.attempt, log.lines[0].at if log.lines else 0.0))
    lines = [
        LogLine(
            at=datetime.fromtimestamp(line.at, UTC),
            level=line.level,
            logger=line.logger,
            text=line.text,
            job=ref.job_id,
            attempt=log.attempt,
            number=number,
            step=line.step,
            trace=log.trace,
        )
        for log in logs
        for number, line in enumerate(log.lines, log.cut + 1)
        if step in (None, line.step)
    ]
    return JobLogs(
        items=lines,
        cut={log.attempt: log.cut for log in logs if log.cut},
        ended=bool(logs) and logs[-1].ended,
    )


def _stream(names: Names) -> str:
    return f"KV_{names.logs_bucket}"


def _subject(names: Names, key: str) -> str:
    return f"$KV.{names.logs_bucket}.{key}"

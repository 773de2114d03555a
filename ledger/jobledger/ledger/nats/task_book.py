"""The bucket TASKS: a description of each task, from the last worker that started with it.

A key per task name. The leases of living workers name their tasks, so nothing here has to be removed when a worker is
gone. No decision about a job depends on this bucket: it is for people who want to know a task.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import LedgerError, ServerUnreachableError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.streams import StreamSpec, bucket_specification, ensure_streams

_TIMEOUT_S: Final = 5.0
_TASKS_MAX: Final = 10_000
_READ_AT_ONCE: Final = 1_000  #: the server gives the newest of 1,024 subjects at the most
_ENTRY_BYTES_MAX: Final = 64 << 10


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The description of a task."""

    name: str
    queue: str  #: queue of its jobs, unless their enqueuer names another
    text: str  #: the docstring of its function, "" without
    input: Any  #: JSON Schema of its input; True, which lets anything through, if it is not known
    worker: str  #: the worker that announced it
    announced_at: datetime  #: by that worker's clock
    #: Of a workflow: the versions of it that the worker has, "" for one without; None: it is no workflow.
    versions: tuple[str, ...] | None = None
    #: JSON of `additions.announced.EnqueueDefaults`, the options of its jobs; absent if the worker did not announce
    #: them.
    enqueued: msgspec.Raw = NO_VALUE
    signals: dict[
        str, Any
    ] = {}  #: of a workflow: JSON Schema of each signal that its runs are known to wait for


def tasks_specification(names: Names, replicas: int) -> StreamSpec:
    """Return the bucket; workers create it, so nobody else needs the right to do so."""
    return bucket_specification(
        _stream(names),
        _subject(names, ">"),
        entries_max=_TASKS_MAX,
        entry_bytes_max=_ENTRY_BYTES_MAX,
        replicas=replicas,
    )


async def write_tasks(inbox: Inbox, names: Names, entries: list[TaskEntry], *, replicas: int) -> None:
    """Store entries in the place of earlier ones; create the bucket if it is missing.

    Raises: ServerUnreachableError, ReplyTimeoutError, JetStreamDisabledError; PermissionRefusedError,
        StreamMismatchError, LedgerFullError, LedgerError for errors that another try would not mend.
    """
    await ensure_streams(inbox, [tasks_specification(names, replicas)])
    for entry in entries:
        try:
            data, _ = await inbox.ask(_subject(names, entry.name), _fitting(entry), timeout_s=_TIMEOUT_S)
        except ConnectionLostError as error:
            raise ServerUnreachableError("the connection was lost while tasks were announced") from error
        if b'"error"' in data:
            raise LedgerError(f"the server refused to store task {entry.name}: {data[:200].decode()}")


def _fitting(entry: TaskEntry) -> TaskEntry:
    """Return an entry that fits into the bucket, without the parts that make it too large."""
    if len(msgspec.json.encode(entry)) <= _ENTRY_BYTES_MAX:
        return entry
    return msgspec.structs.replace(entry, text="", input=True, signals={})


async def find_task(inbox: Inbox, names: Names, task: str) -> TaskEntry | None:
    """Return the newest announcement of a task; None without one, or if a newer version wrote it.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    found = await api.get_message(inbox, _stream(names), {"last_by_subj": _subject(names, task)})
    try:
        return None if found is None else msgspec.json.decode(found.content, type=TaskEntry)
    except msgspec.MsgspecError:
        return None


async def read_tasks(connection: Connection, inbox: Inbox, names: Names) -> list[TaskEntry]:
    """Return the description of every task, by name; empty if no worker ever ran.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    known = await task_names(inbox, names)
    entries: list[TaskEntry] = []
    for first in range(0, len(known), _READ_AT_ONCE):
        subjects = [_subject(names, each) for each in known[first : first + _READ_AT_ONCE]]
        try:
            found = await api.direct_get(
                connection, inbox, _stream(names), {"multi_last": subjects}, batch=True
            )
        except ConnectionLostError as error:
            raise ServerUnreachableError("the bucket of tasks gave no answer") from error
        for data, _ in found:
            with contextlib.suppress(msgspec.MsgspecError):  # a newer version wrote it
                entries += [msgspec.json.decode(data, type=TaskEntry)] if data else []
    return sorted(entries, key=lambda each: each.name)


async def task_names(inbox: Inbox, names: Names) -> list[str]:
    """Return the names of all tasks that a worker ever announced, sorted; none where no worker did.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    try:
        found = await api.stream_info(inbox, _stream(names), subjects=_subject(names, ">"))
    except api.MissingError:
        return []
    prefix = _subject(names, "")
    return sorted(subject.removeprefix(prefix) for subject in found.state.subjects or ())


def _stream(names: Names) -> str:
    return f"KV_{names.tasks_bucket}"


def _subject(names: Names, key: str) -> str:
    return f"$KV.{names.tasks_bucket}.{key}"

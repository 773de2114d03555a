"""Settings of processes that run jobs: an option and a variable for each field of their configurations.

By rule `ack_wait_s` is `--ack-wait` and JOBLEDGER_ACK_WAIT_S, and a switch that is on is turned off with
`--no-reactors` and JOBLEDGER_NO_REACTORS. This module has the help of a field, and the configuration its default.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Final, get_type_hints

import msgspec
import typer

from jobledger.admin.amounts import duration, size
from jobledger.cli.options import REPLICAS, Setting
from jobledger.cli.session import CLIENT_NAME
from jobledger.cli.times import seconds
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.variables import variable
from jobledger.workers.config import WorkerConfig

_MIB_BITS: Final = 20
_TABLES: Final = "Tables of runs"
_TUNING: Final = "Tuning"


def _same(value: Any) -> Any:
    return value


def _bytes(mib: int) -> int:
    return mib << _MIB_BITS


def _mib(count: int) -> str:
    return str(count >> _MIB_BITS)


def _on(_switch: object) -> str:
    return "1"


def _setting(
    name: str,
    told: str,
    *,
    flag: str = "",
    metavar: str = "",
    default: str = "",
    panel: str | None = _TUNING,
    mib: bool = False,
) -> Setting:
    """Return the setting of a field. `flag`, `metavar`, `default`: instead of those by rule. `mib`: typed in MiB."""
    config: Any = LedgerConfig if name in LedgerConfig.__struct_fields__ else WorkerConfig
    kind = get_type_hints(config)[name]
    usual = {each.name: each.default for each in msgspec.structs.fields(config)}[name]
    is_on, is_switch, is_span = usual is True, kind is bool, name.endswith("_s")
    flag = flag or f"{'--no-' if is_on else '--'}{name.removesuffix('_s').replace('_', '-')}"
    word = flag.removeprefix("--").replace("-", "_") + ("_s" if is_span else "")
    default = default or _words(name, usual)
    option = typer.Option(
        flag,
        envvar=variable(word),
        metavar="" if is_switch else metavar or ("SPAN" if is_span else "BYTES" if "bytes" in name else "N"),
        parser=seconds() if is_span else None,
        help=told if is_switch else f"{told} (default: {default})",
        rich_help_panel=panel,
    )
    return Setting(
        option=Annotated[kind | None, option],
        flag=flag,
        variable=variable(word),
        told=told,
        default=default,
        value=operator.not_ if is_on else _bytes if mib else _same,
        text=_on if is_switch else _mib if mib else str,
    )


def _words(name: str, usual: object) -> str:
    """Return a default as a person reads it."""
    if isinstance(usual, bool):
        return "off"
    if isinstance(usual, int | float):
        if name.endswith("_s"):
            return duration(usual).replace(".0 ", " ")
        return size(usual).replace(".0 ", " ") if "bytes" in name else f"{usual:,}"
    return str(usual)


#: Settings of a process that connects: places of values and tables, waits, and the ledger that it makes.
LEDGER: Final[dict[str, Setting]] = {
    "tables_at": _setting(
        "tables_at",
        "Folder or bucket that keeps tables of runs.",
        flag="--tables",
        metavar="URI",
        default="in the ledger",
        panel=_TABLES,
    ),
    "tables_life_s": _setting(
        "tables_life_s", "How long tables are kept, where this process makes their bucket.", panel=_TABLES
    ),
    "tables_bytes_max": _setting(
        "tables_bytes_max",
        "Size limit of a bucket of tables that it makes.",
        default="an eighth of the ledger's",
        panel=_TABLES,
    ),
    "tracing": _setting(
        "tracing",
        "Record a span for each job and attempt with the OpenTelemetry that is set up in this process.",
        flag="--traces",
        panel=None,
    ),
    "name": _setting(
        "name", "What the server calls this process's connection.", metavar="NAME", default=CLIENT_NAME
    ),
    "replicas": REPLICAS,
    "master_key": _setting(
        "master_key",
        "Where the master keys of owners' keys are: file:PATH, env:NAME or exec:PROGRAM.",
        metavar="SOURCE",
        default="nowhere",
    ),
    "seal": _setting(
        "seal", "Whose values are sealed: owners, or all for those of every job.", metavar="WHOSE"
    ),
    **{
        name: _setting(name, told, metavar=metavar)
        for name, metavar, told in (
            ("connect_timeout_s", "", "How long the first connection may take."),
            ("request_timeout_s", "", "How long a request waits for a silent server."),
            ("append_timeout_s", "", "How long an append may take across reconnects."),
            ("room_timeout_s", "", "How long bulk enqueues, and jobs that enqueue, wait for room."),
            ("inline_bytes_max", "", "Larger inputs and results go to the object store."),
            ("payload_bytes_max", "", "Larger inputs and results are refused."),
            ("lease_s", "", "Length of leases, where this process makes their bucket."),
            ("commit", "WAY", "How appends are sent: group, pipeline, or auto for the faster one."),
            ("enqueue_in_flight_max", "", "Appends of one bulk enqueue that wait for an answer."),
            ("prefetch_max", "", "Events that a reader of the ledger asks for at a time."),
            (
                "inbox_prefix",
                "SUBJECT",
                "What subjects of answers begin with. (default: _INBOX_ and the user)",
            ),
        )
    },
}
#: Settings of the gateway, without those that it sets itself: waits of a request, and appends in flight.
GATEWAY: Final[dict[str, Setting]] = {
    name: each
    for name, each in LEDGER.items()
    if name not in {"append_timeout_s", "room_timeout_s", "enqueue_in_flight_max"}
}
#: Settings of a process that runs jobs, beside those of `LEDGER`.
WORKER: Final[dict[str, Setting]] = {
    "concurrency": _setting("concurrency", "Attempts that may run at once, threads included.", panel=None),
    "grace_s": _setting(
        "grace_s", "How long running attempts may continue after a stop was requested.", panel=None
    ),
    "cancel_grace_s": _setting(
        "cancel_grace_s",
        "How long a task may take to end after its timeout or cancel; then its attempt ends without it.",
        panel=None,
    ),
    "pool_size": _setting(
        "pool_size",
        'Processes for tasks with run_in="process", per worker.',
        flag="--pool",
        default="one per CPU",
        panel=None,
    ),
    "pool_memory_bytes_max": _setting(
        "pool_memory_bytes_max",
        "Address space of each of these processes, in MiB.",
        flag="--pool-memory",
        metavar="MIB",
        default="no limit",
        panel=None,
        mib=True,
    ),
    "log_bytes_max": _setting(
        "log_bytes_max",
        "Bytes of what each attempt logs that are kept for `jobs logs`, the newest; 0: none.",
        flag="--log-bytes",
        panel=None,
    ),
    "log_prints": _setting("log_prints", "Keep what tasks print for `jobs logs`, too.", panel=None),
    **{
        name: _setting(name, told, default=default)
        for name, default, told in (
            ("ack_wait_s", "", "Silence after which a job is delivered again; of consumers that it makes."),
            ("ack_pending_max", "", "Deliveries of a queue that may be open; of consumers that it makes."),
            ("table_memory_bytes_max", "an equal share of half the memory", "Memory of one query of a run."),
            ("table_threads", "an equal share of the CPUs", "Threads of one query of a run."),
            ("tables_cache_bytes_max", "", "Files of tables that are kept on this machine."),
            ("pool_calls_max", "never", "Attempts after which a process of the pool is replaced."),
            ("stall_s", "", "How long a task may block the event loop before the log names it."),
            ("reactors", "", "Host no reactors (timers, ...): another worker of the environment has to."),
            ("jobs_max", "no limit", "Take this number of deliveries at most, and stop when they are done."),
        )
    },
}

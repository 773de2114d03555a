"""What configurations can be told in Python, the processes that run jobs can be told by option and by variable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pytest
from tests.support.program import PROGRAM

from jobledger.cli.command import Cli
from jobledger.cli.options import Setting
from jobledger.cli.processes import gateway, up, worker
from jobledger.cli.processes.settings import GATEWAY, LEDGER, WORKER
from jobledger.cli.processes.supervise import environment_of_child
from jobledger.cli.session import Target
from jobledger.ledger import LedgerConfig
from jobledger.workers import WorkerConfig

#: Fields that are said otherwise: the name of the parameter that says them.
_OWN_OPTION: Final = {"weights": "queues", "schedules": "no_schedules"}
#: Fields without option and variable, and why.
_PYTHON_ONLY: Final = {
    "create": "each command decides whether it makes a ledger",
    "nats_options": "objects of Python, such as a TLS context",
    "sealing": "an object of Python",
    "supervisor": "a supervisor tells its own processes, by --supervised",
}
_GATEWAY_HAS_ITS_OWN: Final = {
    "append_timeout_s": "somebody waits for each request, so it waits for 10 s at most",
    "room_timeout_s": "somebody waits for each request, which says when to try again",
    "enqueue_in_flight_max": "uploads share the appends of one process with all other requests",
}
#: A value for each setting that is not its default, as a variable says it, and the field that follows.
_VALUES: Final[Mapping[str, tuple[str, Any]]] = {
    "tables_at": ("file:///t", "file:///t"),
    "tables_life_s": ("2h", 7200.0),
    "tables_bytes_max": ("2000000", 2_000_000),
    "tracing": ("1", True),
    "name": ("me", "me"),
    "connect_timeout_s": ("6s", 6.0),
    "request_timeout_s": ("7", 7.0),
    "append_timeout_s": ("8", 8.0),
    "room_timeout_s": ("9m", 540.0),
    "inline_bytes_max": ("1024", 1024),
    "payload_bytes_max": ("4096", 4096),
    "lease_s": ("20", 20.0),
    "replicas": ("3", 3),
    "commit": ("group", "group"),
    "master_key": ("file:/k", "file:/k"),
    "seal": ("all", "all"),
    "enqueue_in_flight_max": ("9", 9),
    "prefetch_max": ("10", 10),
    "inbox_prefix": ("_INBOX_me", "_INBOX_me"),
    "concurrency": ("7", 7),
    "grace_s": ("1m", 60.0),
    "cancel_grace_s": ("2", 2.0),
    "pool_size": ("3", 3),
    "pool_memory_bytes_max": ("128", 128 << 20),
    "log_bytes_max": ("0", 0),
    "log_prints": ("1", True),
    "ack_wait_s": ("11", 11.0),
    "ack_pending_max": ("500", 500),
    "table_memory_bytes_max": ("67108864", 64 << 20),
    "table_threads": ("2", 2),
    "tables_cache_bytes_max": ("0", 0),
    "pool_calls_max": ("40", 40),
    "stall_s": ("3", 3.0),
    "reactors": ("1", False),
    "jobs_max": ("12", 12),
}


@pytest.mark.parametrize("name", ["worker", "gateway", "up"])
def test_every_field_has_an_option_and_a_variable(name: str) -> None:
    params = {each.name: each for each in PROGRAM.commands[name].params}
    fields, exceptions = {*LedgerConfig.__struct_fields__}, {*_PYTHON_ONLY}
    if name == "gateway":
        exceptions |= {*_GATEWAY_HAS_ITS_OWN}
    else:
        fields |= {*WorkerConfig.__struct_fields__}
    for field in sorted(fields - exceptions):
        param = params[_OWN_OPTION.get(field, field)]
        assert param.envvar, f"{field} has no variable"
        assert param.envvar.startswith("JOBLEDGER_")
    assert not exceptions & params.keys()


def test_no_two_options_of_a_process_share_a_variable() -> None:
    for name in ("worker", "gateway", "up"):
        variables = [each.envvar for each in PROGRAM.commands[name].params if each.envvar]
        assert len(variables) == len({*variables})


@pytest.mark.parametrize(
    ("command", "module", "function", "settings"),
    [
        ("worker", worker, "work", WORKER | LEDGER),
        ("up", up, "_up", WORKER | LEDGER),
        ("gateway", gateway, "_gateway", GATEWAY),
    ],
)
def test_what_a_variable_says_reaches_the_configuration(
    command: str, module: Any, function: str, settings: Mapping[str, Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}

    async def takes(*given: Any) -> None:
        named = dict(zip(inspect.signature(original).parameters, given, strict=True))
        found.update(named)

    original: Callable[..., Any] = getattr(module, function)
    monkeypatch.setattr(module, function, takes)
    for field, setting in settings.items():
        monkeypatch.setenv(setting.variable, _VALUES[field][0])
    monkeypatch.setenv("JOBLEDGER_APP", "jobledger.cli.demo.tasks")
    PROGRAM([command], standalone_mode=False)
    cli, plan = found.get("cli"), found.get("plan")
    target: Target = cli.target if isinstance(cli, Cli) else found["target"]
    ledger = LedgerConfig(**target.words())
    config: WorkerConfig | None = found.get("config") or getattr(plan, "config", None)
    for field in settings:
        holder = ledger if field in LEDGER else config
        assert getattr(holder, field) == _VALUES[field][1], field


def test_the_processes_of_a_supervisor_are_told_what_stood_on_its_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Target] = []

    def supervise(_output: object, target: Target, *_: object, **__: object) -> int:
        found.append(target)
        return 0

    monkeypatch.setattr(worker, "supervise", supervise)
    words = ["worker", "--app", "jobledger.cli.demo.tasks", "--processes", "2", "--tables", "file:///t"]
    words += ["--pool-memory", "64", "--no-reactors", "--lease", "1m", "--traces", "--stall", "2s"]
    PROGRAM(words, standalone_mode=False)
    told = environment_of_child(found[0])
    assert {name: told[name] for name in found[0].setting_variables} == {
        "JOBLEDGER_TABLES": "file:///t",
        "JOBLEDGER_POOL_MEMORY": "64",
        "JOBLEDGER_NO_REACTORS": "1",
        "JOBLEDGER_LEASE_S": "60.0",
        "JOBLEDGER_TRACES": "1",
        "JOBLEDGER_STALL_S": "2.0",
    }


def test_every_value_tried_is_not_the_default() -> None:
    for config, settings in ((LedgerConfig, LEDGER), (WorkerConfig, WORKER)):
        usual = {each.name: each.default for each in msgspec.structs.fields(config)}
        for field in settings:
            assert _VALUES[field][1] != usual[field], field

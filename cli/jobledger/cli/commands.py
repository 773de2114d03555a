"""The table of commands, with the module of each: only the command that was asked for is imported.

A start of the command line is mostly imports, and no command needs those of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import dropwhile
from typing import Final, NamedTuple

import typer

from jobledger.cli import groups
from jobledger.cli.completion import takes_names_only


class Group(NamedTuple):
    """Commands that share their first word."""

    app: typer.Typer
    members: Mapping[str, str | Group]


VERBS: Final = "verbs:"  #: prefix of a module's name in `jobledger.admin.verbs` that declares the command
#: Commands in the order of `--help`, each with its module below `jobledger.cli`, where `@command` names it again.
COMMANDS: Final = Group(
    groups.TOP,
    {
        "up": "processes.up",
        "init": "init",
        "server": "processes.server",
        "worker": "processes.worker",
        "reactors": "processes.reactors",
        "gateway": "processes.gateway",
        "enqueue": "jobs.enqueue",
        "top": "processes.top",
        "stats": "jobs.stats",
        "sql": "projection.sql",
        "jobs": Group(
            groups.JOBS,
            {
                "list": "jobs.list",
                "show": "jobs.show",
                "logs": "jobs.logs",
                "signal": "jobs.signal",
                "pause": "verbs:jobs",
                "resume": "verbs:jobs",
                "note": "verbs:jobs",
                "rerun": "jobs.rerun",
                "cancel": "jobs.bulk",
                "retry": "jobs.bulk",
                "reschedule": "jobs.bulk",
                "discard": "jobs.bulk",
                "run": "jobs.run",
                "debug": "jobs.debug",
            },
        ),
        "workflows": Group(
            groups.WORKFLOWS,
            {"list": "workflows.list", "versions": "workflows.list", "check": "workflows.check"},
        ),
        "queues": Group(
            groups.QUEUES,
            {
                "list": "jobs.queues",
                "pause": "verbs:queues",
                "resume": "verbs:queues",
                "drain": "queues",
                "purge": "jobs.bulk",
            },
        ),
        "limits": Group(
            groups.LIMITS,
            {
                "set": "verbs:limits",
                "list": "limits.show",
                "show": "limits.show",
                "remove": "verbs:limits",
                "verify": "limits.past_grants",
                "simulate": "limits.past_grants",
            },
        ),
        "schedules": Group(
            groups.SCHEDULES,
            {
                "add": "schedules.add",
                "list": "schedules.list",
                "show": "schedules.list",
                "next": "verbs:schedules",
                "pause": "verbs:schedules",
                "resume": "verbs:schedules",
                "trigger": "verbs:schedules",
                "backfill": "verbs:schedules",
                "reset": "verbs:schedules",
                "remove": "verbs:schedules",
                "prune": "schedules.prune",
            },
        ),
        "locks": Group(groups.LOCKS, {"list": "locks", "show": "locks"}),
        "unique": Group(groups.UNIQUE, {"show": "unique"}),
        "tables": Group(
            groups.TABLES,
            {
                "list": "tables.show",
                "show": "tables.show",
                "query": "tables.query",
                "export": "tables.acts",
                "remove": "tables.acts",
            },
        ),
        "outbox": Group(
            groups.OUTBOX,
            {
                "relay": "outbox",
                "status": "outbox",
                "list": "outbox",
                "retry": "outbox",
                "discard": "outbox",
                "create": "outbox",
                "schema": "outbox",
            },
        ),
        "dlq": Group(
            groups.DLQ,
            {"list": "dlq.list", "show": "dlq.show", "requeue": "dlq.acts", "discard": "dlq.acts"},
        ),
        "events": Group(
            groups.EVENTS,
            {
                "tail": "events.tail",
                "schema": "events.schema",
                "asyncapi": "events.schema",
                "subscriptions": Group(
                    groups.SUBSCRIPTIONS,
                    {"list": "events.subscriptions", "remove": "events.subscriptions"},
                ),
            },
        ),
        "webhooks": Group(
            groups.WEBHOOKS,
            {
                "set": "webhooks.change",
                "list": "verbs:webhooks",
                "show": "verbs:webhooks",
                "remove": "verbs:webhooks",
                "pause": "verbs:webhooks",
                "resume": "verbs:webhooks",
                "test": "webhooks.acts",
                "redeliver": "webhooks.acts",
                "rotate": "webhooks.change",
                "keygen": "webhooks.change",
            },
        ),
        "watches": Group(
            groups.WATCHES,
            {
                "set": "verbs:watches",
                "list": "verbs:watches",
                "show": "verbs:watches",
                "remove": "verbs:watches",
            },
        ),
        "graphs": Group(
            groups.GRAPHS,
            {
                "put": "verbs:graphs",
                "list": "verbs:graphs",
                "show": "verbs:graphs",
                "remove": "verbs:graphs",
                "run": "graphs",
            },
        ),
        "routes": Group(
            groups.ROUTES,
            {
                "set": "routes.change",
                "list": "routes.show",
                "show": "verbs:routes",
                "remove": "verbs:routes",
                "deliveries": "routes.show",
                "test": "verbs:routes",
                "retry": "verbs:routes",
                "emit": "verbs:routes",
            },
        ),
        "keys": Group(
            groups.KEYS,
            {
                "create": "verbs:keys",
                "link": "keys",
                "list": "verbs:keys",
                "show": "verbs:keys",
                "rotate": "verbs:keys",
                "revoke": "verbs:keys",
            },
        ),
        "audit": Group(
            groups.AUDIT,
            {
                "verify": "audit.verify",
                "acknowledge": "audit.acknowledge",
                "trail": "audit.trail",
                "who": "audit.who",
                "keygen": "audit.keygen",
                "seal": "audit.seal",
                "seals": "audit.seals",
                "export": "audit.export",
                "restore": "audit.restore",
                "diff": "audit.diff",
                "archive": "audit.archive",
                "redact": "audit.redact",
            },
        ),
        "projection": Group(
            groups.PROJECTION,
            {
                "run": "projection.run",
                "status": "projection.status",
                "rebuild": "projection.rebuild",
                "verify": "projection.verify",
            },
        ),
        "timers": Group(groups.TIMERS, {"status": "jobs.timers", "rebuild": "jobs.timers"}),
        "workers": Group(groups.WORKERS, {"list": "processes.workers"}),
        "ledger": Group(groups.LEDGER, {"resize": "ledger"}),
        "upgrade": Group(groups.UPGRADE, {"show": "verbs:upgrades", "finish": "verbs:upgrades"}),
        "retention": Group(
            groups.RETENTION,
            {"set": "verbs:retention", "show": "verbs:retention", "run": "retention"},
        ),
        "erase": "owners",
        "owners": Group(
            groups.OWNERS,
            {
                "list": "verbs:owners",
                "show": "verbs:owners",
                "hold": "verbs:owners",
                "unhold": "verbs:owners",
                "export": "owners",
                "backup": "owners",
                "restore": "owners",
                "master": Group(groups.MASTER, {"rotate": "owners", "forget": "owners"}),
            },
        ),
        "backup": "backup",
        "restore": "backup",
        "cluster": Group(groups.CLUSTER, {"show": "cluster", "replicas": "cluster"}),
        "permissions": "permissions",
        "replay": "projection.replay",
        "metrics": "health.metrics",
        "doctor": "health.doctor",
        "health": "health.health",
        "demo": "demo.play",
    },
)


#: The panels of `jobledger --help` in order, with the commands in each; each command is in one panel.
PANELS: Final[Mapping[str, tuple[str, ...]]] = {
    "Run": ("up", "worker", "reactors", "gateway", "server", "init", "metrics", "demo"),
    "Jobs": ("enqueue", "jobs", "dlq", "workflows", "graphs", "queues", "limits", "schedules"),
    "Look": ("top", "stats", "doctor", "health", "events", "audit", "sql", "replay"),
    "Connect": ("outbox", "webhooks", "routes", "watches", "keys"),
    "Inside": (
        "workers",
        "ledger",
        "upgrade",
        "retention",
        "erase",
        "owners",
        "backup",
        "restore",
        "cluster",
        "permissions",
        "locks",
        "unique",
        "tables",
        "timers",
        "projection",
    ),
}


#: The help of the commands without a group in `jobledger --help`: the first sentences of their docstrings, repeated
#: here since the list does not import their modules.
HELPS: Final[Mapping[str, str]] = {
    "up": "Run the embedded server (or use --url), a worker for --app, a projector and a gateway, until Ctrl-C.",
    "init": "Make the ledger and the buckets of an environment where they are missing, and say what to do next.",
    "server": "Run nats-server with the project's nats.conf until Ctrl-C; its store is kept between runs.",
    "worker": "Run jobs until SIGTERM or Ctrl-C.",
    "reactors": "Host the reactors (timers, retries, limits, schedules, runs) until SIGTERM or Ctrl-C, and run no task.",
    "gateway": "Serve the HTTP API and the dashboard until SIGTERM or Ctrl-C.",
    "enqueue": 'Add one job and print {"id", "created", "sequence"}; created is false if the id exists already.',
    "top": "Show queues, what hurts, and workers, again and again until Ctrl-C; once where stdout is no terminal.",
    "stats": "Show what happened to jobs in a span of time: how many completed and failed, and how long they waited and ran.",
    "sql": "Ask the projection a question in SQL. It reads the rows, brought up to now, and changes nothing.",
    "replay": "Write the tables as of a past moment to a SQLite file.",
    "erase": "Destroy the key of an owner, so that nobody can read what was sealed under it, wherever a copy is.",
    "backup": "Write a back-up of the environment into DIR while work goes on.",
    "restore": "Bring a back-up back into a server that has none of its streams; the ledger records it.",
    "permissions": "Print what a role may publish and subscribe to, as the entry `permissions` of its user in a nats.conf.",
    "metrics": "Serve the metrics of all queues, tasks and workers for Prometheus, until Ctrl-C.",
    "doctor": "Check server, streams, projection, clock and disk, and tell what hurts; exits with 0 if nothing failed.",
    "health": "Say whether the server answers, a worker of this machine is alive, or the gateway is ready; exits with 0 if so.",
    "demo": "Index the standard library, one job per file, on two workers; one is killed half-way.",
}


def named_by(words: Sequence[str]) -> tuple[str, ...]:
    """Return the groups and the command that the first words of a command line name; () if they name none."""
    found: list[str] = []
    group = COMMANDS
    for word in words:
        if word not in group.members:
            break
        found.append(word)
        member = group.members[word]
        if not isinstance(member, Group):
            break
        group = member
    return tuple(found)


def is_command(path: Sequence[str]) -> bool:
    """Return whether these words name a command, not a group."""
    member: str | Group = COMMANDS
    for word in path:
        assert isinstance(member, Group), "only a group has members"
        member = member.members[word]
    return not isinstance(member, Group)


def add_commands(app: typer.Typer, words: Sequence[str] | None) -> None:
    """Add the command or the group that the words of a command line name; if they name none, all that `--help` lists.

    `words`: what follows the switches for all commands; None adds every command.
    """
    if words is not None and words[:1] == ["--version"]:
        return  # such a line needs no command
    names = _load(
        COMMANDS, None if words is None else list(dropwhile(lambda word: word.startswith("-"), words))
    )
    commands = {command.name: command for command in groups.TOP.registered_commands}
    for panel, members in PANELS.items():
        for name in (each for each in members if each in names):
            member = COMMANDS.members[name]
            if isinstance(member, Group):
                app.add_typer(member.app, name=name, rich_help_panel=panel)
            else:
                commands[name].rich_help_panel = panel
                app.registered_commands.append(commands[name])


def _is_root(group: Group, words: Sequence[str] | None) -> bool:
    """Return whether only the help of all commands is asked for."""
    return group is COMMANDS and words is not None


def _import(member: str) -> None:
    if not member.startswith(VERBS):
        import_module(f"jobledger.cli.{member}")
        return
    from jobledger.cli.verbs import add_verbs  # noqa: PLC0415 - loads what connects, which others do not need

    groups_by_name = {name: each.app for name, each in COMMANDS.members.items() if isinstance(each, Group)}
    add_verbs(import_module(f"jobledger.admin.verbs.{member.removeprefix(VERBS)}"), groups_by_name)


def _unnamed() -> None:
    """Stand in for a command of which only name and help sentence are shown."""


def _load(group: Group, words: Sequence[str] | None) -> list[str]:
    """Import the command that the first word names, or else all commands of the group; return their names.

    The names of groups are returned, too. The commands of these are imported only if the words name the group, or for None.
    """
    named = [words[0]] if words and words[0] in group.members else []
    names = named or list(group.members)
    for name in names:
        member = group.members[name]
        if not isinstance(member, Group) and not named and (takes_names_only() or _is_root(group, words)):
            if all(command.name != name for command in group.app.registered_commands):
                group.app.command(name, help=HELPS.get(name))(_unnamed)
        elif not isinstance(member, Group):
            _import(member)
        elif words is None or named:
            _load(member, None if words is None else words[1:])
    # Commands add themselves when they are imported, and are listed in the order of the table.
    order = list(group.members)
    group.app.registered_commands.sort(key=lambda command: order.index(command.name or ""))
    return names

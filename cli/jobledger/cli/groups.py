"""The groups of commands that `jobledger --help` lists; `@command` adds each command to its own, or to `TOP`."""

from __future__ import annotations

from typing import Final

import typer

from jobledger.cli.help import Group


def _group(words: str) -> typer.Typer:
    return typer.Typer(help=words, cls=Group)


TOP: Final = typer.Typer()  #: typer's app for the commands without a group
QUEUES: Final = _group("List the queues and what they hold; pause, resume, drain and empty them.")
JOBS: Final = _group("List, show, signal, pause, cancel, retry, reschedule and run jobs.")
LIMITS: Final = _group("Set, list, show and remove limits: how many jobs may run at once or start in a time.")
TABLES: Final = _group("List, show, export and remove the tables of runs.")
LOCKS: Final = _group("List and show locks, and which process holds each.")
UNIQUE: Final = _group("Show the keys of unique jobs, and which job holds each.")
WEBHOOKS: Final = _group(
    "Set, list, show, pause and remove webhooks that go out; rotate secrets, test and redeliver."
)
WATCHES: Final = _group("Set, list, show and remove watches: figures that fire beyond a bound.")
ROUTES: Final = _group(
    "Set, list, show and remove routes for webhooks of others; see, test and retry deliveries."
)
GRAPHS: Final = _group("Store, list, show and remove graphs of jobs under names, and begin runs of them.")
KEYS: Final = _group("Make, list, rotate and revoke keys for the gateway, and links to log in with.")
OUTBOX: Final = _group("Make the jobs that wait in an application's database, and see what waits there.")
DLQ: Final = _group("List, show, requeue and discard dead letters.")
EVENTS: Final = _group("Read the ledger's events, their schemas, and who subscribes to them.")
SUBSCRIPTIONS: Final = _group("See and remove durable subscriptions to events.")
AUDIT: Final = _group("Prove the ledger sound, show the trails of its jobs, seal, export and archive it.")
PROJECTION: Final = _group("Follow, inspect and rebuild the projection of the ledger.")
SCHEDULES: Final = _group("Declare schedules, see when they tick, pause, trigger and remove them.")
TIMERS: Final = _group("See and rebuild the timers of jobs that wait for a moment.")
WORKFLOWS: Final = _group("List workflows and their versions, and check recorded runs against new code.")
WORKERS: Final = _group("List the workers.")
OWNERS: Final = _group("List, show and hold owners, whose data is sealed, and change master keys.")
MASTER: Final = _group("Change the master key that wraps the keys of owners, and let go of an old one.")
RETENTION: Final = _group("Say how long events stay in the ledger, and move the oldest into an archive.")
LEDGER: Final = _group("Say how many bytes the ledger may hold.")
UPGRADE: Final = _group("See which process runs which release, and finish an upgrade.")
CLUSTER: Final = _group(
    "See on which servers of a cluster each stream lies, and change how many copies there are."
)

EVENTS.add_typer(SUBSCRIPTIONS, name="subscriptions")
OWNERS.add_typer(MASTER, name="master")

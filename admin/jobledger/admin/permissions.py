"""What each role may publish and subscribe to on the NATS server: one table for users of a nats.conf and docs/subjects.md.

`<word>` stands for one token of a subject, `<words...>` for one or more. A test lets each role do its work on a real
server and compares what its connections sent with this table, both ways. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from jobledger.ledger.model.envelope import PRIORITIES
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import Names, fits
from jobledger.ledger.nats.access import inbox_of, user_of_inbox

Verb = Literal["publish", "subscribe"]


class Right(NamedTuple):
    """One line of the table."""

    verb: Verb
    subject: str  #: as in the environment without a name
    why: str


class Part(NamedTuple):
    """What one part of the work needs."""

    about: str  #: whose work it is
    rights: tuple[Right, ...]


def _part(text: str) -> Part:
    """Read a sentence or more, and behind an empty line the rights, each as `verb subject | why`."""
    about, _, lines = text.strip().partition("\n\n")
    found: list[Right] = []
    for line in lines.splitlines():
        words, _, why = line.partition(" | ")
        verb, subject = words.split()
        assert verb in {"publish", "subscribe"}, line
        found.append(Right("publish" if verb == "publish" else "subscribe", subject, why))
    return Part(about, tuple(found))


#: What each part of the work needs, by its title in docs/subjects.md.
PARTS: Final[Mapping[str, Part]] = {
    "Everybody": _part(
        """Whoever connects looks at every stream, and makes those that are missing: let an operator run `jobledger init` first, since nobody else has the right to make the ledger. Workers may make the buckets `KV_TASKS`, `KV_LANES`, `KV_LOGS` and `OBJ_TABLES`, gateways `KV_ACCESS` and `OBJ_BODIES`, and reactors make `TIMERS` and `ADVISORIES` again where they were lost. Who connects with `create=False`, as all commands that only read, makes none; where there is no ledger it publishes to `$JS.API.STREAM.NAMES`, to name those that there are.

publish $JS.API.STREAM.INFO.LEDGER | checked at connect; the ledger's end
publish $JS.API.STREAM.INFO.TIMERS | checked at connect
publish $JS.API.STREAM.INFO.ADVISORIES | checked at connect
publish $JS.API.STREAM.INFO.DLQ | checked at connect
publish $JS.API.STREAM.INFO.KV_WORKERS | checked at connect; the length of a lease
publish $JS.API.STREAM.INFO.OBJ_PAYLOADS | checked at connect
publish $JS.API.STREAM.INFO.OBJ_RESULTS | checked at connect
subscribe _INBOX.<id>.* | answers, and deliveries of consumers
subscribe hint.ended.<client> | "a job that you wait for has ended"
"""
    ),
    "Producer": _part(
        """An application that enqueues, waits for results and acts on its own jobs. A task that enqueues needs the same in its worker: `--enqueues` adds it there. Graphs and batches are runs in a queue of the ledger's own: who adds them, writes notes, discards jobs or reads their logs needs the rights of an operator.

publish ledger.job.<queue>.<job>.queued.<priority> | enqueue
publish ledger.job.<queue>.<job>.held | enqueue a job that has limits
publish ledger.job.<queue>.<job>.scheduled | enqueue for later, reschedule
publish ledger.unique.<task>.<key>.taken | enqueue or requeue a unique job
publish ledger.job.<queue>.<job>.cancelled | cancel a job that waits
publish ledger.job.<queue>.<job>.cancel_requested | cancel a job that runs
publish hint.cancel.<queue>.<job> | tell its worker to look
publish ledger.job.<queue>.<job>.signalled | send a run a signal
publish hint.resume.<queue>.<job> | tell its worker to look
subscribe hint.progress.<queue>.<job> | what a running job says of its progress
publish $JS.API.CONSUMER.LIST.LEDGER | how many jobs wait: whether the ledger has room for another
publish $JS.API.DIRECT.GET.LEDGER | read a job's events
publish $O.PAYLOADS.C.<object> | an input above the inline limit: its chunks
publish $O.PAYLOADS.M.<object> | and what they are
publish $JS.API.STREAM.NAMES | find the object store
publish $JS.API.STREAM.MSG.GET.OBJ_PAYLOADS | whether an input is there already
publish $JS.API.STREAM.MSG.GET.OBJ_RESULTS | read a result above the inline limit
publish $JS.API.CONSUMER.CREATE.OBJ_RESULTS | its chunks
publish $JS.FC.OBJ_RESULTS.<numbers...> | and their flow control
publish $JS.API.STREAM.MSG.GET.KV_TASKS | enqueue by name: what a worker announced of the task
publish $JS.API.STREAM.INFO.KV_TASKS | names like that of a task that no worker announced
subscribe _INBOX.<id> | chunks of a result
"""
    ),
    "Locks": _part(
        """A producer, or the worker of a task, that holds locks: `--locks` adds it.

publish ledger.lock.<scope>.<lock>.<event> | take, renew and give back a lock
publish hint.lock.<scope>.<lock> | "this lock is free"
publish $KV.WORKERS.<client> | the lease of a client that holds a lock; its name begins with its user
publish $JS.API.DIRECT.GET.KV_WORKERS | whether the holder of a lock lives
publish $JS.API.STREAM.MSG.GET.KV_WORKERS | the same, where its lease is gone
subscribe hint.lock.<scope>.<lock> | whoever waits for a lock
"""
    ),
    "Limits": _part(
        """A producer or a worker whose code defines limits: `--limits` adds it. It can then define every limit, also one of others. Without it an operator defines the limits.

publish ledger.limit.<limit>.set | define the limits that its code has
"""
    ),
    "Owners": _part(
        """A producer, a worker or reactors that make jobs with owners, and so keys: `--owners` adds it. Each key is wrapped by a master key that no server has.

publish $JS.API.STREAM.INFO.KV_KEYS | look for the bucket of owners' keys
publish $JS.API.STREAM.CREATE.KV_KEYS | make it where it is missing
publish $JS.API.STREAM.MSG.GET.KV_KEYS | read the key of an owner
publish $KV.KEYS.<kind>.<owner> | keep a new one
"""
    ),
    "Worker": _part(
        """A worker with `--no-reactors`. `--queue` binds it to the queues that it takes.

publish ledger.job.<queue>.<job>.<event> | claims, outcomes, receipts
publish ledger.job.<queue>.<job>.queued.<priority> | a retry, a child of a run
publish ledger.job.<queue>.<job>.completed.limited | the end of a job with limits
publish $JS.API.DIRECT.GET.LEDGER | read a job's events
publish $JS.API.CONSUMER.CREATE.LEDGER.work_<queue_priority>.ledger.job.<queue>.*.queued.<priority> | make the consumer of its work
publish $JS.API.CONSUMER.INFO.LEDGER.work_<queue_priority> | look for it
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.work_<queue_priority> | ask it for jobs
publish $JS.ACK.LEDGER.work_<queue_priority>.<numbers...> | settle a delivery
publish $KV.WORKERS.<worker> | its lease; its name begins with its user
publish $JS.API.DIRECT.GET.KV_WORKERS | another worker's lease
publish $JS.API.STREAM.MSG.GET.KV_WORKERS | whether a worker's lease has expired, before its job is taken over
publish $JS.API.STREAM.INFO.KV_TASKS | look for the bucket of what tasks are
publish $JS.API.STREAM.CREATE.KV_TASKS | make it where it is missing
publish $KV.TASKS.<task> | say what its task is; without these three rights its work goes on
publish $JS.API.STREAM.INFO.KV_LANES | look for the bucket of how far each lane was settled
publish $JS.API.STREAM.CREATE.KV_LANES | make it where it is missing
publish $KV.LANES.work_<queue_priority> | note how far a lane is settled; without these rights its consumers are kept in files
publish $JS.API.STREAM.MSG.GET.KV_LANES | where the server forgot a consumer: where it is to begin again
publish $O.RESULTS.C.<object> | a result above the inline limit: its chunks
publish $O.RESULTS.M.<object> | and what they are
publish $O.PAYLOADS.C.<object> | a checkpoint, or a value of a step, above that: its chunks
publish $O.PAYLOADS.M.<object> | and what they are
publish $JS.API.STREAM.NAMES | find the object store
publish $JS.API.STREAM.MSG.GET.OBJ_RESULTS | whether a result is there already
publish $JS.API.STREAM.MSG.GET.OBJ_PAYLOADS | read an input above the inline limit
publish $JS.API.CONSUMER.CREATE.OBJ_PAYLOADS | its chunks
publish $JS.FC.OBJ_PAYLOADS.<numbers...> | and their flow control
publish $JS.API.STREAM.MSG.GET.KV_KEYS | the key of a job's owner
publish $JS.API.STREAM.INFO.OBJ_TABLES | look for the bucket of tables of runs
publish $JS.API.STREAM.CREATE.OBJ_TABLES | make it where it is missing
publish $O.TABLES.C.<object> | a table: its chunks
publish $O.TABLES.M.<object> | and what they are
publish $JS.API.STREAM.PURGE.OBJ_TABLES | the chunks of a table that could not be stored whole
publish $JS.API.STREAM.MSG.GET.OBJ_TABLES | read a table that another worker made
publish $JS.API.CONSUMER.CREATE.OBJ_TABLES | its chunks
publish $JS.FC.OBJ_TABLES.<numbers...> | and their flow control
publish $JS.API.STREAM.INFO.KV_LOGS | look for the bucket of what tasks log
publish $JS.API.STREAM.CREATE.KV_LOGS | make it where it is missing
publish $KV.LOGS.<queue>.<job>.<claim> | what an attempt logged; without these three rights its work goes on
publish hint.ended.<client> | tell a client that its job has ended
publish hint.progress.<queue>.<job> | a task's progress
subscribe hint.cancel.<queue>.* | "this running job is to end"
subscribe hint.resume.<queue>.* | "this run has news"
subscribe hint.queue.<queue> | "this queue was paused or resumed"
subscribe _INBOX.<id> | chunks of an input
publish ledger.schedule.<schedule>.<event> | a schedule that the worker's code declares
publish ledger.limit.schedule.set | the limit of one that lets no two of its jobs run at once
publish hint.cancel.<queue>.<job> | tell the worker of a run's child that it is to end
publish ledger.route.<route>.<event> | a route that the worker's code declares
publish ledger.job.<queue>.<job>.completed.child.<parent> | the end of a run's child
publish ledger.job.<queue>.<job>.completed.child.<parent>.limited | the same of one with limits
"""
    ),
    "Reactors": _part(
        """`jobledger reactors`, and each worker that hosts them. They see to jobs of every queue, and have what a worker of the queue `jobledger` has, too.

publish ledger.job.<queue>.<job>.queued.<priority> | a timer that is due, a slot that is given, a tick, a child
publish ledger.job.<queue>.<job>.<event> | what becomes of runs, and of jobs that nobody can finish
publish hint.resume.<queue>.<job> | tell the worker of a run that its children have ended
publish hint.cancel.<queue>.<job> | tell a worker that its job is to end: a deadline, a limit that replaces it
publish ledger.schedule.<schedule>.<event> | a schedule that ticks
publish $JS.API.CONSUMER.PAUSE.LEDGER.work_<queue_priority> | the reconciler: pause or resume it as the ledger says of its queue
publish hint.queue.<queue> | the reconciler: tell the others that it paused or resumed one
publish timer.at.job.<queue>.<job>.<sequence> | set a timer
publish timer.at.schedule.<schedule>.<sequence> | set the timer of a schedule
publish $JS.API.STREAM.CREATE.TIMERS | make the timers' stream where it was lost
publish $JS.API.CONSUMER.NAMES.LEDGER | find consumers of a timers' stream that was lost
publish $JS.API.CONSUMER.DELETE.LEDGER.timers_<id> | and delete them
publish $JS.API.CONSUMER.CREATE.LEDGER.timers_<id> | the consumer that sets timers
publish $JS.API.CONSUMER.INFO.LEDGER.timers_<id> | look for it
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.timers_<id> | ask it for waits
publish $JS.ACK.LEDGER.timers_<id>.<numbers...> | a timer is set
publish $JS.API.CONSUMER.CREATE.TIMERS.due.timer.due.> | the consumer of timers that fired
publish $JS.API.CONSUMER.INFO.TIMERS.due | look for it
publish $JS.API.CONSUMER.MSG.NEXT.TIMERS.due | ask it for timers
publish $JS.ACK.TIMERS.due.<numbers...> | its job is dispatched
publish $JS.API.STREAM.CREATE.ADVISORIES | make the stream where it was lost
publish $JS.API.CONSUMER.CREATE.ADVISORIES.dead_letters | the consumer of dispatches that were given up
publish $JS.API.CONSUMER.INFO.ADVISORIES.dead_letters | look for it
publish $JS.API.CONSUMER.MSG.NEXT.ADVISORIES.dead_letters | ask it for advisories
publish $JS.ACK.ADVISORIES.dead_letters.<numbers...> | its job is seen to
publish $JS.API.CONSUMER.CREATE.LEDGER.children | the consumer of ends of runs and their children
publish $JS.API.CONSUMER.INFO.LEDGER.children | look for it
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.children | ask it for ends
publish $JS.ACK.LEDGER.children.<numbers...> | an end is counted
publish $JS.API.STREAM.MSG.GET.LEDGER | what became of a run while its children were enqueued
publish $JS.API.CONSUMER.LIST.LEDGER | the reconciler: how far each queue is
publish $JS.API.CONSUMER.CREATE.LEDGER.reconcile_<queue_priority>.ledger.job.<queue>.*.queued.<priority> | the consumer that walks behind
publish $JS.API.CONSUMER.INFO.LEDGER.reconcile_<queue_priority> | look for it
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.reconcile_<queue_priority> | ask it for dispatches
publish $JS.ACK.LEDGER.reconcile_<queue_priority>.<numbers...> | a dispatch is done with
publish $JS.API.CONSUMER.CREATE.LEDGER | limits: read who waits and who holds slots
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.<reader> | ask for these events
publish $JS.API.CONSUMER.DELETE.LEDGER.<reader> | tidy up
publish ledger.flow.main.<event> | limits: who is given slots
publish $O.PAYLOADS.C.<object> | limits: a snapshot above the inline limit: its chunks; nothing in their place, once it is not needed
publish $O.PAYLOADS.M.<object> | and what they are
"""
    ),
    "Subscriber": _part(
        """A program that reads events. It makes no consumer, so it can touch no other's.

publish $JS.API.DIRECT.GET.LEDGER | read the ledger in order
"""
    ),
    "Named subscription": _part(
        """A program that follows a named subscription: `--subscription` adds it.

publish $JS.API.CONSUMER.CREATE.LEDGER.events_<subscription> | make it
publish $JS.API.CONSUMER.INFO.LEDGER.events_<subscription> | look for it
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.events_<subscription> | ask it for events
publish $JS.ACK.LEDGER.events_<subscription>.<numbers...> | settle a delivery
publish $KV.WORKERS.<client> | its lease, for `upgrade show`; its name begins with its user; without this right it is not seen there
"""
    ),
    "Projector": _part(
        """It keeps tables up to date and tells metrics; it appends nothing.

publish $JS.API.DIRECT.GET.LEDGER | read the ledger in order
publish $JS.API.CONSUMER.LIST.LEDGER | metrics: what waits in each queue
publish $JS.API.STREAM.INFO.<stream> | metrics: where its copies are
publish $JS.API.DIRECT.GET.KV_WORKERS | metrics: which workers live
publish $KV.WORKERS.<client> | its lease, for `upgrade show`; its name begins with its user; without this right it is not seen there
"""
    ),
    "Operator": _part(
        """A person, or the gateway in a person's name.

publish $JS.API.INFO | `doctor`: what the account has used
publish $JS.API.STREAM.INFO.<stream> | `doctor`, `cluster show`: where its copies are
publish $JS.API.CONSUMER.CREATE.LEDGER | read the ledger in order: lists, tail
publish $JS.API.CONSUMER.MSG.NEXT.LEDGER.<reader> | ask for events
publish $JS.API.CONSUMER.DELETE.LEDGER.<reader> | tidy up; forget a subscription
publish $JS.API.DIRECT.GET.LEDGER | read a job's events
publish $JS.API.CONSUMER.LIST.LEDGER | `doctor`, subscriptions, what an archive run would take from them
publish $JS.API.CONSUMER.INFO.LEDGER.<consumer> | `jobs show --why`, `timers status`, a subscription
publish $JS.API.CONSUMER.INFO.TIMERS.due | `timers status`
publish $JS.API.DIRECT.GET.TIMERS | `timers status`: when the next is due
publish timer.at.job.<queue>.<job>.<sequence> | `timers rebuild`
publish timer.at.schedule.<schedule>.<sequence> | the same
publish $JS.API.DIRECT.GET.KV_WORKERS | `workers list`
publish $JS.API.STREAM.MSG.GET.KV_TASKS | `jobs show --why`, `schedules add`, `enqueue` without `--app`: what a worker announced of a task
publish $JS.API.STREAM.INFO.KV_TASKS | names like that of a task that no worker announced; `init`, a gateway with `--app`: look for the bucket
publish $JS.API.STREAM.CREATE.KV_TASKS | `init`, a gateway with `--app`: make it where it is missing
publish $KV.TASKS.<task> | a gateway with `--app`: say what its task is
publish ledger.job.<queue>.<job>.<event> | `jobs cancel`, `dlq discard`, what an archive run carries forward
publish ledger.job.<queue>.<job>.queued.<priority> | `jobs retry`, `dlq requeue`
publish hint.cancel.<queue>.<job> | `jobs cancel` of a job that runs
publish hint.resume.<queue>.<job> | `jobs signal`
subscribe hint.progress.<queue>.<job> | `enqueue` that waits: its progress
publish $JS.API.STREAM.MSG.GET.KV_WORKERS | `jobs show --why`, `locks list`: a worker whose lease is gone
publish $JS.API.STREAM.MSG.GET.KV_KEYS | `jobs show`, `erase`: the key of a job's owner
publish ledger.webhook.<webhook>.<event> | `webhooks set` and all that changes one; a gateway: that nothing arrives
publish $JS.API.CONSUMER.CREATE.LEDGER.webhooks_<id> | the place of a webhook in the ledger
publish $JS.API.CONSUMER.CREATE.LEDGER.webhooks_<id>.<filter...> | the same, of one type of event
publish ledger.watch.<watch>.<event> | `watches set`, `watches remove`; a gateway: that one fires
publish ledger.graph.<graph>.<event> | `graphs put`, `graphs remove`
publish ledger.retention.main.set | `retention set`
publish ledger.owner.<kind>.<id>.<event> | `erase`, `owners hold`
publish $JS.API.STREAM.INFO.KV_KEYS | `erase`: look for the bucket of owners' keys
publish $JS.API.STREAM.CREATE.KV_KEYS | `owners restore`: make the bucket where it is missing
publish $KV.KEYS.<kind>.<owner> | `erase`: an entry without the key
publish $JS.API.STREAM.MSG.DELETE.KV_KEYS | `erase`: take the older ones off the disk
publish ledger.limit.<limit>.<event> | `limits set`, `limits remove`
publish ledger.queue.<queue>.<event> | `queues pause`, `queues resume`
publish ledger.access.<key>.<event> | `keys create`, `keys link`, `keys rotate`, `keys revoke`
publish $JS.API.STREAM.INFO.KV_ACCESS | `keys list`, `init`, a gateway: look for the bucket of when keys were last used
publish $JS.API.STREAM.CREATE.KV_ACCESS | `init`, a gateway: make it where it is missing
publish $KV.ACCESS.<key> | a gateway: when a key was last used; without this right it is not known
publish $KV.ACCESS.ended.<session> | a gateway: that somebody logged out; without this right other gateways are not told
publish $JS.API.DIRECT.GET.KV_ACCESS | `keys list`, a gateway: read it
publish $JS.API.DIRECT.GET.KV_LOGS | `jobs logs`, a gateway: what the attempts of a job logged
publish $JS.API.STREAM.MSG.GET.LEDGER | a gateway: whether it knows of every change of a key
publish ledger.route.<route>.<event> | `routes set`, `routes remove`
publish ledger.delivery.<route>.<delivery>.<event> | a gateway, `emit`, `routes retry`: what was delivered to a route
publish $JS.API.STREAM.INFO.OBJ_BODIES | the same: look for the bucket of bodies
publish $JS.API.STREAM.CREATE.OBJ_BODIES | make it where it is missing
publish $O.BODIES.C.<object> | keep a body: its chunks
publish $O.BODIES.M.<object> | and what names them
publish $JS.API.STREAM.MSG.GET.OBJ_BODIES | whether a body is kept already; `routes test`, `routes retry`: read it
publish $JS.API.CONSUMER.CREATE.OBJ_BODIES | its chunks
publish ledger.schedule.<schedule>.<event> | `schedules add` and all that changes one; what an archive run carries forward
publish $JS.API.CONSUMER.PAUSE.LEDGER.work_<queue_priority> | the same, for the consumers of its work
publish hint.queue.<queue> | tell its workers to look
publish ledger.unique.<task>.<key>.taken | `jobs retry`, `dlq requeue` of a unique job
publish ledger.reactor.<name>.<event> | `audit seal`, `audit archive`, `audit redact`, `audit verify --record`
publish ledger.unreadable.<sequence>.acknowledged | `audit acknowledge`
publish $JS.API.STREAM.NAMES | find an object store
publish $JS.API.STREAM.MSG.GET.OBJ_PAYLOADS | read inputs, for lists and archives
publish $JS.API.STREAM.MSG.GET.OBJ_RESULTS | read results
publish $JS.API.CONSUMER.CREATE.OBJ_PAYLOADS | their chunks
publish $JS.FC.OBJ_PAYLOADS.<numbers...> | and their flow control
publish $JS.API.CONSUMER.CREATE.OBJ_RESULTS | their chunks
publish $JS.FC.OBJ_RESULTS.<numbers...> | and their flow control
subscribe _INBOX.<id> | chunks of a payload
publish $JS.API.STREAM.INFO.OBJ_TABLES | doctor: how full the bucket of tables is; find a table
publish $JS.API.STREAM.MSG.GET.OBJ_TABLES | whether a table is there
publish $JS.API.CONSUMER.CREATE.OBJ_TABLES | copy a table: its chunks
publish $JS.FC.OBJ_TABLES.<numbers...> | and their flow control
publish $O.TABLES.C.<object> | remove a table: nothing in the place of its chunks
publish $O.TABLES.M.<object> | and that it is gone
"""
    ),
    "Owner": _part(
        """A person who makes the streams, and says how large they are and how many copies they have.

publish $JS.API.STREAM.CREATE.LEDGER | make an environment
publish $JS.API.STREAM.CREATE.TIMERS | the same
publish $JS.API.STREAM.CREATE.ADVISORIES | the same
publish $JS.API.STREAM.CREATE.DLQ | the same
publish $JS.API.STREAM.CREATE.KV_WORKERS | the same
publish $JS.API.STREAM.CREATE.OBJ_PAYLOADS | the same
publish $JS.API.STREAM.CREATE.OBJ_RESULTS | the same
publish $JS.API.STREAM.UPDATE.<stream> | `ledger resize`, `cluster replicas`, `upgrade finish`; `restore`: let workers in
publish $JS.API.CONSUMER.LIST.<stream> | `backup`: how far consumers are
publish $JS.API.STREAM.SNAPSHOT.<stream> | `backup`
publish $JS.SNAPSHOT.ACK.<stream>.<words...> | and its flow control
publish $JS.API.STREAM.RESTORE.<stream> | `restore`
publish $JS.SNAPSHOT.RESTORE.<stream>.<words...> | and what is brought back
publish $JS.API.STREAM.DELETE.<stream> | `restore --again`: what an unfinished one left
publish $JS.API.CONSUMER.CREATE.<stream>.<consumer> | `restore`: consumers at their places
publish $JS.API.CONSUMER.CREATE.<stream>.<consumer>.<filter...> | the same, of one filter
"""
    ),
    "Auditor": _part(
        """It proves and exports; it appends nothing.

publish $JS.API.DIRECT.GET.LEDGER | read the ledger in order; a job's events
publish $JS.API.STREAM.NAMES | find an object store
publish $JS.API.STREAM.MSG.GET.OBJ_PAYLOADS | export inputs
publish $JS.API.STREAM.MSG.GET.OBJ_RESULTS | export results
publish $JS.API.CONSUMER.CREATE.OBJ_PAYLOADS | their chunks
publish $JS.FC.OBJ_PAYLOADS.<numbers...> | and their flow control
publish $JS.API.CONSUMER.CREATE.OBJ_RESULTS | their chunks
publish $JS.FC.OBJ_RESULTS.<numbers...> | and their flow control
subscribe _INBOX.<id> | chunks of a payload
"""
    ),
    "Archiver": _part(
        """It moves what has ended into archives, and takes that from the ledger. It reads as an auditor does.

publish ledger.reactor.<name>.<event> | that the archive was made, redacted or forgotten, with its hash; `audit seal`
publish ledger.job.<queue>.<job>.<event> | what is carried forward of jobs
publish ledger.job.<queue>.<job>.queued.<priority> | the job of a tick that nobody had made yet
publish timer.at.job.<queue>.<job>.<sequence> | the timer of a job that waits, set again
publish ledger.schedule.<schedule>.<event> | what is carried forward of schedules
publish ledger.unique.<task>.<key>.taken | the unique key of a job that lives on, said again
publish ledger.limit.<limit>.<event> | what is in force of limits, said again
publish ledger.route.<route>.<event> | what is in force of routes, said again
publish ledger.webhook.<webhook>.<event> | what is in force of webhooks, said again
publish ledger.watch.<watch>.<event> | what is in force of watches, said again
publish ledger.graph.<graph>.<event> | what is in force of graphs, said again
publish ledger.retention.main.set | what is in force of retention, said again
publish ledger.owner.<kind>.<id>.<event> | holds and erasures that are not done, said again
publish $KV.WORKERS.<keeper> | the lease of the keeper; its name begins with its user
publish $JS.API.STREAM.INFO.KV_WORKERS | whether another process is the keeper
publish $JS.API.DIRECT.GET.KV_WORKERS | and which
publish ledger.access.<key>.<event> | what is in force of keys, said again
publish $JS.API.CONSUMER.LIST.LEDGER | what it would take from subscriptions
publish $JS.API.STREAM.PURGE.LEDGER | take away what was archived
publish $O.PAYLOADS.M.<object> | the keeper: mark a large value that no event names
publish $JS.API.STREAM.PURGE.OBJ_PAYLOADS | and delete it half a day later
publish $JS.API.STREAM.MSG.DELETE.OBJ_PAYLOADS | and write over its bytes on the disk
publish $JS.API.STREAM.MSG.GET.DLQ | `audit redact`: find the copies of dead letters
publish $JS.API.STREAM.MSG.DELETE.DLQ | and write over them on the disk
"""
    ),
    "In a cluster": _part(
        """Whoever reads the ledger in order asks the stream's leader whether its end is reached ([ADR 004](adr/004-own-hot-paths-on-nats-py.md)); a worker asks it for a wait that its replica does not have.

publish $JS.API.STREAM.MSG.GET.LEDGER | whether nothing is left to read
"""
    ),
}

#: What a role may, by the parts of the work that it does.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "producer": ("Producer",),
    "worker": ("Worker",),
    "reactors": ("Reactors",),
    "subscriber": ("Subscriber",),
    "reader": ("Projector", "Auditor"),
    "archiver": ("Auditor", "Archiver"),
    "gateway": ("Operator", "Projector", "Worker", "Reactors", "Owners"),
    "operator": (
        "Operator",
        "Owner",
        "Archiver",
        "Projector",
        "Auditor",
        "Producer",
        "Locks",
        "Owners",
    ),
}
#: The parts of every role.
COMMON: Final = ("Everybody", "In a cluster")
#: Roles whose rights can be bound to queues; others see to jobs of every queue, or read the whole ledger.
BOUND: Final = ("producer", "worker")
_NAMED: Final = re.compile(r"<(queue|queue_priority|subscription)>")
_QUEUE: Final = "mail"
_WORD: Final = re.compile(r"<[^>]+>")
_MORE: Final = re.compile(r"<[^>]*[.]{3}>")
_BUCKETS: Final = ("KV_", "OBJ_")
_ACK: Final = "$JS.ACK."


class SubjectLists(NamedTuple):
    """The subjects of one NATS user; nothing else is allowed, and nothing is denied."""

    publish: list[str]
    subscribe: list[str]


def allowed(
    role: str,
    names: Names,
    *,
    queues: Sequence[str] = (),
    inbox_prefix: str = "_INBOX",
    more: Sequence[tuple[str, Sequence[str]]] = (),
) -> SubjectLists:
    """Return what a role may; `queues`: those that it is bound to, none: all of them.

    `more`: further parts, each with the queues that it is bound to.

    Raises: KeyError for an unknown role.
    """
    renamed = _renamed(names)
    found: dict[Verb, set[str]] = {"publish": set(), "subscribe": set()}
    for part, bound in (*parts_of(ROLES[role], queues), *more):
        for right in PARTS[part].rights:
            shape = ".".join(renamed.get(token, token) for token in right.subject.split("."))
            for subject in bound_to(shape, bound):
                found[right.verb].update(_patterns(subject, inbox_prefix))
    return SubjectLists(_widest(found["publish"]), _widest(found["subscribe"]))


def parts_of(parts: Sequence[str], queues: Sequence[str] = ()) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield everybody's parts, these, and those that these need, each with the queues that it is bound to."""
    for part in (*COMMON, *parts):
        yield part, queues
        if part == "Reactors":  # the ledger's own runs are theirs
            yield "Worker", (BUILT_IN_QUEUE,)


def let_through(role: str) -> list[Right]:
    """Return the rights that a role has beyond its own work: acts of other roles whose subjects its list also matches.

    A role that can be bound to queues counts as bound to one. Raises: KeyError for an unknown role.
    """
    queues = (_QUEUE,) if role in BOUND else ()
    inbox_prefix = inbox_of(role)
    may = allowed(role, Names(), queues=queues, inbox_prefix=inbox_prefix)._asdict()
    own = {
        right[:2]
        for part, bound in parts_of(ROLES[role], queues)
        for right in PARTS[part].rights
        if not bound or _QUEUE in bound or "<queue" not in right.subject
    }
    found = {right[:2]: right for part in PARTS.values() for right in part.rights if right[:2] not in own}
    return [
        right
        for right in found.values()
        if not right.subject.startswith("_INBOX.")  # its own
        and any(fits(example(right.subject, inbox_prefix), each) for each in may[right.verb])
    ]


def example(subject: str, inbox_prefix: str, queue: str = _QUEUE) -> str:
    """Return one of the subjects that a subject of the table stands for."""
    if subject.startswith("_INBOX."):
        return subject.replace("_INBOX", inbox_prefix).replace("<id>", "x")
    of_queue = next(bound_to(subject, (queue,))) if "<queue" in subject else subject
    return _WORD.sub("x", _MORE.sub("1.2", of_queue))


def _renamed(names: Names) -> dict[str, str]:
    """Return the tokens that differ in an environment: streams, buckets, and what subjects begin with."""
    plain = Names()
    found = dict(zip(plain.streams, names.streams, strict=True))
    for before, after in list(found.items()):
        if before.startswith(_BUCKETS):
            found[before.partition("_")[2]] = after.partition("_")[2]
    return found | dict(zip(_roots(plain), _roots(names), strict=True))


def _roots(names: Names) -> list[str]:
    return [each.partition(".")[0] for each in (names.all_events, names.all_timers, names.queue_hint("*"))]


def bound_to(subject: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a subject for each queue or subscription, and for each priority if it is about a consumer of work."""
    if not names or not _NAMED.search(subject):
        yield subject
        return
    for name in names:
        of_name = subject.replace("<queue>", name).replace("<subscription>", name)
        if "<queue_priority>" not in subject:
            yield of_name
            continue
        for priority in PRIORITIES:
            yield of_name.replace("<queue_priority>", f"{name}_{priority}")


def _widest(patterns: set[str]) -> list[str]:
    """Return the patterns, sorted, without those that another one covers."""
    return sorted(
        each
        for each in patterns
        if not any(
            fits(each, other) and (other.endswith(">") or not each.endswith(">"))
            for other in patterns
            if other != each
        )
    )


def _patterns(subject: str, inbox_prefix: str) -> Iterator[str]:
    """Yield a subject as nats-server takes it; `inbox_prefix` names its user."""
    if subject.startswith("_INBOX."):
        yield f"{inbox_prefix}.>"
        return
    tokens = _MORE.sub(">", subject).split(".")
    pattern = ".".join("*" if "<" in token else token for token in tokens)
    if pattern.startswith("$KV.") and tokens[1].endswith("WORKERS") and (user := user_of_inbox(inbox_prefix)):
        pattern = f"{pattern.removesuffix('*')}{user}.*"
    yield pattern
    if pattern.startswith(_ACK):  # newer servers put domain and account before the stream
        yield f"{_ACK}*.*.{pattern.removeprefix(_ACK)}"


def as_configuration(allow: SubjectLists, *, about: str) -> str:
    """Return the rights as the entry `permissions` of a user in a nats.conf; `about`: a comment on whose they are."""
    lists = _listed("publish", allow.publish) + _listed("subscribe", allow.subscribe)
    return f"# {about}\npermissions: {{\n{lists}}}\n"


def _listed(verb: Verb, subjects: Sequence[str]) -> str:
    lines = "".join(f'      "{each}"\n' for each in subjects)
    return f"  {verb}: {{\n    allow: [\n{lines}    ]\n  }}\n"

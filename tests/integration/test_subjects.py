"""What each role publishes and subscribes to, recorded while it does its work, against the table of rights.

Permissions are made of that table: a subject that is missing there is refused to somebody in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import nats
import pytest
from tests.integration.test_owners import master_file
from tests.support.groups import KEY, begin
from tests.support.jetstream import api
from tests.support.limited import define, undefine
from tests.support.limited import enqueue as limited
from tests.support.roles import authorization, printed, user
from tests.support.schedules import declare
from tests.support.secured import Secured, secured
from tests.support.subjects import EVERYBODY, ONLY_IN_A_CLUSTER, REACTORS_TOO, Recorder, Row, Use, rows
from tests.support.working import LIMIT_S, becomes, ended, until, working

from jobledger.admin.keeper import Keeper
from jobledger.admin.keys import list_keys
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.audit.archive.unnamed import clear_values
from jobledger.cli.errors import NOT_FOUND
from jobledger.cli.main import run
from jobledger.gateway.access.keys import AccessSettings, opened_access
from jobledger.ledger import (
    Backoff,
    Context,
    JobState,
    Ledger,
    Limit,
    Route,
    RouteDefinition,
    Run,
    Schedule,
    Signal,
    TaskRegistry,
    Unique,
    connect,
    task,
    workflow,
)
from jobledger.ledger.masters import MastersHere
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.commands import Claim, Complete, Remove
from jobledger.ledger.model.errors import JobCancelledError, JobFailedError, TaskNotFoundError
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE, ChildNode, ChildOrder
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.api import get_message, right_to_read
from jobledger.ledger.nats.dead_copies import erase_dead_copies
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.nats.snapshots import closed_subjects
from jobledger.ledger.nats.stored_values import StoredValues
from jobledger.ledger.owner_key import WrapKey
from jobledger.ledger.throttle import waiting_jobs
from jobledger.projections import Projector
from jobledger.projections.metrics.facts import server_facts
from jobledger.workers.announcement import announce_tasks
from jobledger.workers.attempt import intake
from jobledger.workers.reactors import hosts
from jobledger.workers.reactors.children.creation import ChildOpener
from jobledger.workers.reactors.reconciler import Reconciler

#: Who acts on the stage -> the parts of the table that are theirs.
ROLES = {
    "Producer": ("Producer", "Locks", "Limits", "Owners"),
    "Worker": ("Worker",),
    "Reactors": ("Reactors", REACTORS_TOO),
    "Subscriber": ("Subscriber", "Named subscription"),
    "Projector": ("Projector",),
    "Operator": ("Operator", "Owner"),
    "Auditor": ("Auditor",),
    "Archiver": ("Archiver",),
}
#: Parts of which a role needs some.
ALSO = {"Archiver": ("Auditor",)}
#: What each reader tries first; without that right it reads by direct gets.
TRIED = Use("publish", right_to_read("LEDGER"))
#: And what `jobledger permissions` is asked for its user.
WORDS = {
    "Producer": ("producer", "--locks", "--limits", "--owners"),
    "Worker": ("worker",),
    "Reactors": ("reactors",),
    "Subscriber": ("subscriber", "--subscription", "billing"),
    "Projector": ("reader",),
    "Operator": ("operator",),
    "Auditor": ("reader",),
    "Archiver": ("archiver",),
}
go = Signal("go", bool)
LARGE = "x" * 3_000_000


@task(queue="work")
async def large(text: str) -> str:
    return text


@task(queue="work", max_attempts=2, backoff=Backoff(base_s=1.2, jitter=0.0))
async def later(ctx: Context, number: int) -> int:
    ctx.logger.warning("kept")
    if ctx.attempt == 1:
        raise ValueError("not the first time")
    return number


@task(queue="work", max_attempts=1)
async def never(number: int) -> None:
    raise ValueError(f"{number} does not please")


@task(queue="work")
async def forever(ctx: Context, number: int) -> None:
    ctx.progress(1, 2)
    await ctx.checkpoint({"number": number})
    await asyncio.sleep(LIMIT_S)


def _noise() -> bytes:
    return secrets.token_bytes(3_000_000)


@workflow(queue="work")
async def tabulates(run: Run) -> int:
    rows = await run.write("rows", [{"data": _noise()}])
    await run.wait(go)
    return (await rows.path()).stat().st_size


@task(queue="work")
async def small(number: int) -> int:
    return number


@workflow(queue="work")
async def gathers(run: Run) -> int:
    numbers = await run.map(small, [1, 2])
    await run.wait(go)
    return sum(numbers)


@workflow(queue="work", deadline_s=1.5)
async def ends_late(run: Run) -> None:
    await run.call(forever, 1)


@workflow(queue="work")
async def races(run: Run) -> int:
    """One branch ends once the child of the other runs, which is then told to end."""

    async def first() -> int:
        await run.sleep(1.5)
        return 1

    async def other() -> int:
        await run.call(forever, 1)
        return 2

    return await run.race(first, other)


class Stage:
    """A server, and the roles that act on it, one after the other or at the same time."""

    def __init__(self, server: Secured, folder: Path, recorder: Recorder) -> None:
        self._server = server
        self._url = self.address("all")
        self._folder = folder
        self._master = master_file(folder, "m1")
        self._recorder = recorder

    @contextlib.asynccontextmanager
    async def client(self, role: str, **settings: Any) -> AsyncGenerator[Ledger, None]:
        async with contextlib.AsyncExitStack() as stack:
            with self._recorder.playing(role):
                ledger = await stack.enter_async_context(
                    connect(self.address(role), ledger_bytes_max=16 << 20, **settings)
                )
            yield ledger

    def address(self, user: str) -> str:
        """Return the server's address with a user's name and password."""
        return self._server.url(host=f"{user}:p@127.0.0.1")

    def command(self, role: str, *words: str) -> None:
        code = self._run(role, *words)
        assert code == (words == ("doctor",)), words  # it fails since jobs wait in a queue without a worker

    def _run(self, role: str, *words: str) -> int:
        with self._recorder.playing(role), pytest.MonkeyPatch.context() as patch:
            patch.setenv("JOBLEDGER_URL", self.address(role))
            return run(words)

    async def produce(self) -> None:
        """Enqueue in every way, wait, look, cancel, hold a lock."""
        async with self.client("Producer", master_key=self._master) as ledger:
            sealed = await ledger.enqueue(small.options(owner="person:1", id="sealed"), 1)
            assert await sealed.result(timeout_s=LIMIT_S) == 1
            first = await ledger.enqueue(large.options(id="first"), LARGE)
            delayed = await ledger.enqueue(later.options(delay_s=1.5, id="delayed"), 1)
            await ledger.enqueue_many(large, [{"text": str(number)} for number in range(20)])
            assert await first.result(timeout_s=LIMIT_S) == LARGE
            await ledger.enqueue(never.options(limits=(Limit("api", slots=0),)), 1)
            await self._cancel(ledger)
            await ledger.enqueue(later.options(delay_s=3600.0, id="tomorrow"), 1)
            await ledger.cancel((await ledger.enqueue(never.options(limits=("undefined",)), 1)).ref)
            for name in ("dead", "buried"):
                failing = await ledger.enqueue(never.options(id=name, unique=Unique()), 1)
                with pytest.raises(JobFailedError):
                    await failing.result(timeout_s=LIMIT_S)
            assert await delayed.result(timeout_s=LIMIT_S) == 1
            await self._by_name(ledger)
            gathered = await ledger.enqueue(gathers.options(id="gathered"))
            await ledger.signal(gathered, go, True)
            assert await gathered.result(timeout_s=LIMIT_S) == 3
            late = await ledger.enqueue(ends_late.options(id="late"))
            raced = await ledger.enqueue(races.options(id="raced"))
            assert await raced.result(timeout_s=LIMIT_S) == 1
            with pytest.raises(JobCancelledError):
                await late.result(timeout_s=LIMIT_S)
            assert await waiting_jobs(ledger.inbox, ledger.names) is not None  # asked where a ledger fills
            async with ledger.lock("account", "42"):
                assert (await (await ledger.job("delayed")).snapshot()).attempts

    async def _by_name(self, ledger: Ledger) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await ledger.find_task("later") is None:
                await asyncio.sleep(0.01)
        await ledger.cancel((await ledger.enqueue_named("later", {"number": 1}, delay_s=3600.0)).ref)
        with pytest.raises(TaskNotFoundError):
            await ledger.enqueue_named("latter", {"number": 1})

    async def _cancel(self, ledger: Ledger) -> None:
        stuck = await ledger.enqueue(forever.options(id="stuck", priority="high"), 1)
        async with asyncio.timeout(LIMIT_S):
            while not (await stuck.snapshot()).attempts:
                await asyncio.sleep(0.01)
        async with ledger.hints.watch_progress(stuck.ref, lambda _: None):
            pass
        assert await ledger.leases.find("nobody") is None  # as who waits for a lock does
        await ledger.cancel(stuck.ref)
        await ledger.cancel((await ledger.enqueue(never.options(delay_s=3600.0), 1)).ref)
        with pytest.raises(JobCancelledError):
            await stuck.result(timeout_s=LIMIT_S)

    async def work(self) -> None:
        """Run a worker with every reactor while another process produces."""
        code = TaskRegistry([large, later, never, forever, tabulates, small, gathers, races, ends_late])
        code.add_schedule(
            Schedule("alone", cron="30 2 1 1 *", task=small, input={"number": 1}, overlap="buffer_one")
        )
        code.add_route(Route("declared", RouteDefinition(scheme="internal")))
        async with (
            self.client("Reactors", inline_bytes_max=1) as host,  # a snapshot of the limits is above that
            working(host, registry=TaskRegistry([]), queues=(BUILT_IN_QUEUE,), schedules=False),
            self.client("Worker", inline_bytes_max=1, master_key=self._master) as ledger,
            working(ledger, registry=code, ack_wait_s=1.0, reactors=False) as worker,
        ):
            await worker.taking.wait()
            await declare(ledger, "often", every_s=1)
            await declare(ledger, "rarely", every_s=3600)
            await self.produce()
            await self._limit()
            await self._tabulate()
            for name in ("often", "rarely"):  # else what they wait for would hold an archive run back
                await ledger.schedules.act(name, Remove())
            assert await ledger.leases.find("nobody") is None  # as claims do before they take a job over
            await self._resume_by_hand(ledger)
            await until(lambda: self._has_used("Reactors", "$JS.ACK.LEDGER.reconcile_"))
            await until(lambda: self._has_used("Worker", "ledger.route.declared."))

    async def _limit(self) -> None:
        """Let the worker give a job a slot of a limit; the definition is taken away again, for it would hold archives back."""
        async with connect(self._url, name="nobody") as ledger:
            await define(ledger, "api", slots=1)
            await ended(await limited(ledger, large, "api", given={"text": "short"}))
            await ended(await limited(ledger, never, "api", given={"number": 1}, max_attempts=1))
            await self._group(ledger)
            await undefine(ledger, "api")

    async def _tabulate(self) -> None:
        """Let the worker store a table; another one brings it back, see `recover`."""
        async with connect(self._url, name="nobody") as ledger:
            await becomes(await ledger.enqueue(tabulates.options(id="tabulated")), JobState.WAITING)

    async def _group(self, ledger: Ledger) -> None:
        """Let the worker make the second child of a run once the first one has ended."""
        nodes = tuple(ChildNode(task=large.name, queue="work", limits=limits) for limits in (("api",), ()))
        order = ChildOrder(task=large.name, queue="work", count=2, limit=1, nodes=nodes)
        run = await begin(ledger, order, [{"text": "short"}, {"text": "short"}])
        view = await load(ledger.log, run.ref)
        await ChildOpener(ledger).open(run.ref, view, KEY, 1, again=False)
        await becomes(run, JobState.QUEUED)
        claimed = await ledger.execute(run.ref, Claim(worker="nobody", lease_s=15))
        await ledger.execute(run.ref, Complete(epoch=claimed.claim_epoch))

    async def _resume_by_hand(self, ledger: Ledger) -> None:
        """Resume a consumer other than its queue, which the reconciler then pauses again."""
        async with connect(self._url, name="nobody") as operator:
            await operator.pause_queue("work")
            consumer = f"CONSUMER.PAUSE.{ledger.names.ledger_stream}.work_work_normal"
            await api(operator.inbox, consumer, {})
            await until(lambda: Use("publish", "hint.queue.work") in self._recorder.used["Reactors"])
            await operator.resume_queue("work")

    async def recover(self) -> None:
        """Find streams gone that reactors can make again, and hear of a dispatch that was given up."""
        async with (
            self.client("Reactors") as host,
            working(host, registry=TaskRegistry([]), queues=(BUILT_IN_QUEUE,), schedules=False) as hosting,
            self.client("Worker") as ledger,
            working(ledger, never, tabulates, reactors=False) as worker,
        ):
            await hosting.taking.wait()
            await worker.taking.wait()
            async with self.client("Operator") as other:
                await other.signal("tabulated", go, True)
                await ended(await other.job("tabulated"))
                tabled = await other.enqueue(tabulates.options(id="tabled"))
                await other.signal(tabled, go, True)
                await ended(tabled)
            advisory = b'{"consumer":"work_work_normal","stream_seq":1,"deliveries":20}'
            subject = (
                f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{ledger.names.ledger_stream}.work_work_normal"
            )
            async with connect(self._url, name="nobody") as server:
                server.connection.send(subject, "", b"", advisory)
            await until(lambda: self._has_used("Reactors", "$JS.ACK.ADVISORIES."))
            await until(lambda: self._has_used("Reactors", "$JS.API.CONSUMER.DELETE.LEDGER.timers_"))

    def _has_used(self, role: str, beginning: str) -> bool:
        return any(use.subject.startswith(beginning) for use in self._recorder.used[role])

    async def subscribe(self) -> None:
        """Follow the ledger with a reader of one's own, and as a named subscription."""
        async with self.client("Subscriber") as ledger:
            async with ledger.events(follow=False) as events:
                assert [each async for each in events]
            async with ledger.subscription("billing", follow=False) as deliveries:
                async for delivery in deliveries:
                    await delivery.ack()
                await self._leased("Subscriber")

    async def project(self) -> None:
        """Keep the tables up to date, and gather what metrics tell."""
        async with self.client("Projector") as ledger:
            with Projector(ledger.log, self._folder / "projection.db") as projector:
                running = asyncio.create_task(projector.run())
                await projector.wait_for((await ledger.log.head()).last_sequence, timeout_s=LIMIT_S)
                async with ledger.reader_leases.held("projector"):
                    await self._leased("Projector")
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            await server_facts(ledger, 1)

    async def _leased(self, role: str) -> None:
        """Wait until a reader has asked for its lease."""
        await until(
            lambda: any(use.subject.startswith("$KV.WORKERS.") for use in self._recorder.used.get(role, ()))
        )

    async def _litter(self) -> int:
        """Store what is no event, as any app of the account can; return its stream sequence."""
        stranger = await nats.connect(self._url)
        try:
            return (
                await stranger.jetstream().publish("ledger.job.work.rubbish.queued.high", b"no event")
            ).seq
        finally:
            await stranger.close()

    async def _let_in(self) -> None:
        """Follow the keys as a gateway does, and note that one was used and that somebody logged out."""
        settings = AccessSettings(session_key=self._folder / "session.key")
        async with (
            self.client("Operator") as ledger,
            opened_access(ledger, settings, is_loopback=True) as access,
        ):
            await until(lambda: self._has_used("Operator", "$JS.API.STREAM.MSG.GET.LEDGER"))
            (info,) = await list_keys(ledger)
            async with ledger.hints.watch_progress(JobRef(queue="work", job_id="delayed"), lambda _: None):
                pass  # as `enqueue` does while it waits
            assert (
                await ledger.leases.find("nobody") is None
            )  # as `jobs show --why` does of a worker that died
            first = await ledger.job("first")
            assert await first.result(timeout_s=LIMIT_S) == LARGE  # as who asks a gateway does
            queued = (await first.history())[0].event
            assert isinstance(queued, Queued)
            await ledger.inputs.get(queued.input, queued.input_ref, key="")
            access.uses.note(info.key, "127.0.0.1")
            await access.uses.store()
            await access.end_session(access.sessions.open(key=info.key, sha256="a"), by="ann")

    async def _forget_tasks(self) -> None:
        """Delete what workers announced, so that an operator has to make its bucket."""
        async with connect(self._url, name="nobody") as somebody:
            await api(somebody.inbox, "STREAM.DELETE.KV_TASKS", {})

    async def _announce(self) -> None:
        """Say what tasks are, as a gateway with their code does."""
        async with self.client("Operator") as ledger:
            done = asyncio.Event()
            announcing = asyncio.create_task(
                announce_tasks(ledger, TaskRegistry([large]), "gateway", done=done)
            )
            await done.wait()
            announcing.cancel()

    async def _emit(self) -> None:
        """Hand data to a route, as a gateway hands on what it was sent."""
        async with self.client("Operator") as ledger:
            await ledger.emit("orders", {"order": 77}, id="o1")

    def _begin_again(self) -> None:
        """Begin a ledger, and say what its tasks are."""
        anyio.run(self._forget_tasks)
        self.command("Operator", "init")
        anyio.run(self._announce)

    async def _lose(self) -> None:
        """Delete every stream."""
        async with connect(self._url, name="nobody") as somebody:
            for stream in somebody.names.streams:
                await api(somebody.inbox, f"STREAM.DELETE.{stream}", {})

    async def _close(self) -> None:
        """Leave the ledger as a restore that was not finished does."""
        async with connect(self._url, name="nobody") as somebody:
            config = (await api(somebody.inbox, "STREAM.INFO.LEDGER", {}))["config"]
            closed = {**config, "subjects": closed_subjects(somebody.names)}
            assert "error" not in await api(somebody.inbox, "STREAM.UPDATE.LEDGER", closed)

    def bring_back(self) -> None:
        """Back everything up, and bring it back: once, and again as after a restore that was not finished."""
        backups = str(self._folder / "backups")
        self.command("Operator", "backup", backups)
        anyio.run(self._lose)
        self.command("Operator", "restore", backups, "--paused")
        anyio.run(self._close)
        self.command("Operator", "restore", backups, "--again")

    def operate(self) -> None:
        """Look and act as a person does."""
        act = functools.partial(self.command, "Operator")
        act("doctor")
        act("ledger", "resize", "96MiB")
        act("upgrade", "show")
        act("limits", "set", "tenant", "--slots", "5")
        act("workers", "list")
        for words in (
            ("jobs", "list"),
            ("jobs", "logs", "delayed"),
            ("queues", "list"),
            ("dlq", "list"),
            ("timers", "status"),
        ):
            act(*words)
        act("jobs", "show", "dead")
        act("jobs", "show", "sealed")
        act("jobs", "show", "--why", "dead")
        act("events", "tail")
        assert self._run("Operator", "enqueue", "nobody_has_it") == NOT_FOUND
        act("schedules", "add", "nightly", "--task", "nobody_has_it", "--cron", "30 2 * * *")
        act("timers", "rebuild")
        act("schedules", "trigger", "nightly")
        act("schedules", "pause", "nightly")
        act("timers", "status")
        act("jobs", "cancel", "taken")
        act("queues", "pause", "work")
        act("keys", "create", "ci", "--role", "viewer")
        anyio.run(self._let_in)
        act("keys", "list")
        act("routes", "set", "orders", "--scheme", "internal", "--task", "nobody_has_it")
        anyio.run(self._emit)
        act("routes", "retry", "orders", "o1")
        act("routes", "remove", "orders")
        act("queues", "resume", "work")
        self._operate_on_hooks_and_graphs()
        act("dlq", "requeue", "dead")
        act("jobs", "show", "--why", "dead")
        act("jobs", "cancel", "dead")
        act("dlq", "discard", "buried", "--reason", "tried")
        act("events", "subscriptions", "list")
        act("events", "subscriptions", "remove", "billing")
        self._operate_on_tables_and_proofs()

    def _operate_on_hooks_and_graphs(self) -> None:
        act = functools.partial(self.command, "Operator")
        target = ("--to", "https://example.org/hook", "--secret", "env:HOOK")
        act("webhooks", "set", "one", *target, "--event", "dead_lettered")
        act("webhooks", "set", "two", *target, "--event", "dead_lettered", "--event", "completed")
        act("webhooks", "pause", "two")
        act("webhooks", "remove", "one")
        act("watches", "set", "deep", "--figure", "depth", "--above", "100")
        act("watches", "remove", "deep")
        act("retention", "set", "--keep", "1d")
        self._operate_on_owners()
        graph = self._folder / "graph.json"
        graph.write_text(
            '{"nodes": [{"name": "first", "task": "small", "input": {"number": 1}}]}', encoding="utf-8"
        )
        act("graphs", "put", "nightly", "--file", str(graph))
        act("graphs", "remove", "nightly")
        act("locks", "list")

    def _operate_on_owners(self) -> None:
        act = functools.partial(self.command, "Operator")
        anyio.run(self._own)
        keys = str(self._folder / "keys")
        act("owners", "backup", keys)
        act("owners", "hold", "person:17")
        act("owners", "unhold", "person:17")
        act("erase", "person:17", "--grace", "0", "--no-wait", "--reason", "asked")
        anyio.run(self._lose_keys)
        act("owners", "restore", keys)

    async def _own(self) -> None:
        """Have an owner who has a key."""
        async with connect(self._url, name="nobody") as somebody:
            keys = somebody.keys
            assert isinstance(keys, OwnerKeys)
            keys.masters = MastersHere({"m1": WrapKey(b"k" * 32)})
            await keys.key_for("person:17")

    async def _lose_keys(self) -> None:
        """Delete the bucket of owners' keys, so that an operator has to make it."""
        async with connect(self._url, name="nobody") as somebody:
            await api(somebody.inbox, "STREAM.DELETE.KV_KEYS", {})

    def _operate_on_tables_and_proofs(self) -> None:
        act = functools.partial(self.command, "Operator")
        act("tables", "show", "tabled", "rows")
        act("tables", "export", "tabled", "rows", str(self._folder / "rows.parquet"))
        act("tables", "remove", "tabled", "rows")
        key = self._folder / "seal.key"
        assert run(("audit", "keygen", str(key))) == 0
        act("audit", "seal", "--key", str(key))
        rubbish = anyio.run(self._litter)
        act("audit", "acknowledge", str(rubbish), "--reason", "a test")
        self._begin_again()

    def archive(self) -> None:
        moment = datetime.now(UTC).isoformat()
        self.command(
            "Archiver", "audit", "archive", "--before", moment, "--to", str(self._folder / "archive")
        )
        redact = ("audit", "redact", "--archive", str(self._folder / "archive"))
        self.command("Archiver", *redact, "--where", "queue=none", "--reason", "a test")
        anyio.run(self._erase_copy)
        anyio.run(self._keep)
        anyio.run(self._clear)

    async def _erase_copy(self) -> None:
        """Erase the copy of a dead letter, as after its job was redacted."""
        async with connect(self._url, name="nobody") as somebody:
            copy = await get_message(somebody.inbox, somebody.names.dlq_stream, {"seq": 1})
            assert copy is not None
        async with self.client("Archiver") as ledger:
            assert await erase_dead_copies(ledger.inbox, ledger.names, {digest(copy.content)}) == 1

    async def _keep(self) -> None:
        """Be the keeper for a moment."""

        async def look() -> MoveOutcome:
            return MoveOutcome()

        async with (
            connect(self._url, name="nobody") as watching,
            self.client("Archiver") as ledger,
            anyio.create_task_group() as group,
        ):
            group.start_soon(Keeper(ledger, look, default_to=str(self._folder / "archive")).run)
            with anyio.fail_after(LIMIT_S):
                while await watching.leases.find(f"{ledger.leases.user}.keeper") is None:
                    await anyio.sleep(0.02)
            group.cancel_scope.cancel()

    async def _clear(self) -> None:
        """Mark a large value that no event names, and delete it; time is brought along."""
        async with self.client("Producer") as ledger:
            await ledger.inputs.put(msgspec.json.encode(LARGE[::-1] + "!"), what="input", key="")
        async with self.client("Archiver") as ledger:
            stored, archive = (
                StoredValues(ledger.inbox, ledger.names, ledger.inputs),
                self._folder / "archive",
            )
            now = ledger.clock.now()
            assert (await clear_values(ledger.log, stored, archive, now + timedelta(days=1))).marked
            assert (await clear_values(ledger.log, stored, archive, now + timedelta(days=2))).deleted

    def audit(self) -> None:
        """Prove and keep what is there; change nothing."""
        act = functools.partial(self.command, "Auditor", "audit")
        act("verify")
        act("trail", "delayed")
        act("who")
        act("seals")
        act("diff", "5", "10")
        act("export", str(self._folder / "export"))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(hosts, "Reconciler", functools.partial(Reconciler, grace_s=0.2))
    monkeypatch.setattr(intake, "_NOTE_EVERY_S", 0.2)
    return Recorder(monkeypatch)


async def prepare(url: str) -> None:
    """Take away what the reactors make again, and leave a job running whose worker is not here."""
    async with connect(url, name="nobody") as ledger:
        taken = await ledger.enqueue(never.options(id="taken", queue="idle"), 1)
        await ledger.execute(taken.ref, Claim(worker="elsewhere", lease_s=15.0))
        names = ledger.names
        for stream in (names.timers_stream, names.advisories_stream):
            assert (await api(ledger.inbox, f"STREAM.DELETE.{stream}", {}))["success"]


def play(stage: Stage) -> None:
    async def live() -> None:
        async with stage.client("Operator"):  # makes the streams
            pass
        await stage.work()
        await prepare(stage.address("all"))
        await stage.recover()
        await stage.subscribe()
        await stage.project()

    anyio.run(live)
    stage.operate()
    stage.audit()
    stage.archive()
    stage.bring_back()


@pytest.fixture
def server(nats_server_binary: str, tmp_path: Path) -> Iterator[Secured]:
    """A server that gives each role the rights that are printed for it."""
    users = [user(role, printed(*words, "--of", role)) for role, words in WORDS.items()]
    with secured(nats_server_binary, tmp_path / "server", authorization(*users)) as running:
        yield running


def test_each_role_uses_the_subjects_of_the_page_and_no_others_and_none_is_refused(
    server: Secured, tmp_path: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    play(Stage(server, tmp_path, recorder))
    assert "does not allow" not in caplog.text
    assert set(recorder.used) - {"nobody"} == set(ROLES)
    page = rows()
    missing = [said for role in ROLES for said in _missing(page, role, recorder.used[role])]
    assert missing == [], "\n".join(missing)
    unused = [said for row in page if (said := _unused(row, recorder)) is not None]
    assert unused == [], "\n".join(unused)


def _missing(page: list[Row], role: str, used: set[Use]) -> list[str]:
    parts = {*ROLES[role], *ALSO.get(role, ()), EVERYBODY, ONLY_IN_A_CLUSTER}
    its = [row for row in page if row.role in parts]
    return [
        f"{role} uses a subject that admin.permissions does not have: add `{use.verb} {use.subject} | why` "
        f"to the part {role}, with `<word>` for what differs from job to job"
        for use in sorted(used - {TRIED})
        if not any(row.fits(use) for row in its)
    ]


def _unused(row: Row, recorder: Recorder) -> str | None:
    roles = [role for role, parts in ROLES.items() if row.role in {*parts, EVERYBODY}]
    idle = [role for role in roles if not any(map(row.fits, recorder.used.get(role, ())))]
    if row.shape == "$JS.API.STREAM.PURGE.OBJ_TABLES":
        return None  # nats-py: where a table could not be stored whole
    if row.role == "Archiver" and row.shape.startswith(("ledger.", "timer.")):
        return None  # what there is to carry on differs; test_permissions lets an archiver say all again
    if row.role == "Worker" and any(map(row.fits, recorder.used["Reactors"])):
        return None  # whichever of them comes first makes what both need
    if not idle or row.role in {ONLY_IN_A_CLUSTER, REACTORS_TOO}:
        return None
    return (
        f"`{row.verb} {row.shape}` was not used by {', '.join(idle)}: take it out of its part, or use it here"
    )


def test_a_new_shape_of_subject_is_told_with_the_place_to_add_it() -> None:
    page = rows()
    known, new = Use("publish", "$JS.API.STREAM.INFO.LEDGER"), Use("publish", "$JS.API.STREAM.DELETE.LEDGER")
    (said,) = _missing(page, "Auditor", {known, new})
    assert "$JS.API.STREAM.DELETE.LEDGER" in said
    assert "to the part Auditor" in said
    assert len(_missing(page, "Producer", {Use("publish", "ledger.job.work.j1.completed")})) == 1
    assert len(_missing(page, "Producer", {Use("subscribe", "ledger.>")})) == 1

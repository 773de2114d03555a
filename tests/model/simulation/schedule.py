"""One schedule: what a seed makes of workers, jobs, operators and faults, and how it ended."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from datetime import datetime, timedelta
from random import Random
from typing import Any, cast

import msgspec
from tests.model.simulation.checks import QUEUE, Witness
from tests.model.simulation.faults import Faults
from tests.model.simulation.loop import Process, StuckError, World
from tests.model.simulation.patches import SOURCES
from tests.model.simulation.server import EPOCH, Server
from tests.model.simulation.tasks import KINDS, Runs, act, recording, registry
from tests.model.simulation.wire import SimConnection

from jobledger.ledger.client import Ledger
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.connection import assemble
from jobledger.ledger.model.commands import Discard, Requeue
from jobledger.ledger.model.errors import LedgerError, NotFoundError, RefusedError
from jobledger.ledger.model.subjects import TIMERS_CONSUMER_PREFIX, JobRef
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.timer_stream import id_of
from jobledger.ledger.nats.writer import Writer
from jobledger.workers.config import WorkerConfig
from jobledger.workers.worker import Worker

_LOOK_S = 0.25
_SET_BACK_S_MAX = 40.0
_MEDDLING_TRIES = 5
_REST_LIMIT_S = 600.0
_CONFIGS = tuple(LedgerConfig(commit=commit) for commit in ("auto", "auto", "group"))


class SimClock:
    """One process's clocks."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now(self) -> datetime:
        process = self._process
        return EPOCH + timedelta(seconds=process.world.now + process.wall_offset_s)

    def monotonic(self) -> float:
        return self._process.time()


class Result(msgspec.Struct, kw_only=True):
    """How one schedule ended."""

    seed: int
    simulated_s: float
    steps: int
    events: int
    jobs: int
    states: dict[str, int]
    faults: Counter[str]
    violations: list[str]
    trace_hash: str
    trace: list[tuple[Any, ...]]


class Schedule:
    """Everything of one seed."""

    def __init__(self, seed: int, *, always: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.random = Random(f"{seed}")
        self.world = World(self.random)
        self.faults = Faults(self.random, always)
        # It polls, which costs a third of a short schedule: only where an advisory may be lost, and at times.
        reconcile = "lost advisory" in self.faults.active or self.random.random() < 0.2
        SOURCES.begin(self.world, reconcile=reconcile)
        pick = self.random.choice
        self.lease_s = pick((2.0, 2.0, 3.0, 3.0, 3.0, 6.0))
        self._settings: dict[str, Any] = {
            "queues": (QUEUE,),
            "concurrency": pick((1, 2, 4)),
            "ack_wait_s": pick((1.0, 1.0, 3.0, 10.0)),
            "grace_s": pick((0.0, 1.0, 5.0)),
        }
        self._config = pick(_CONFIGS)
        self.server = Server(
            self.world,
            self.faults,
            lease_s=self.lease_s,
            durability=None if seed % 3 else "power",  # then its clients append in groups
        )
        self.server.deliveries_max = pick((None, None, 4))  # else nobody would ever see a dispatch given up
        self.witness = Witness(self.server)
        self.runs = Runs(self.world, self.witness.check_start)
        self.workers: dict[Process, Worker | None] = {}
        self.worker_count = pick((1, 2, 2, 2, 2, 3))
        self.hosts = pick((1, 1, 1, 1, self.worker_count))  # how many of them host the reactors
        self.job_count = pick((1, 1, 1, 2, 2, 3, 6))
        self.created: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.unsure: set[str] = set()  # an enqueue that may have made it had no answer
        self.errors: list[str] = []
        self.operations_left = 1  # the making of the others
        self._number = 0

    def run(self) -> Result:
        world = self.world
        stuck = ""
        with recording(self.runs):
            for slot in range(self.worker_count):
                self.start_worker(slot)
            Operators(self).start()
            Havoc(self).start()
            world.at(self.faults.until, self.heal)
            self._look()
            try:
                world.run(self.faults.until + _REST_LIMIT_S)
            except StuckError as error:
                stuck = self._describe_stuck(error)
            violations = self._violations(stuck)
            world.end()
        return self._result(violations)

    def _result(self, violations: list[str]) -> Result:
        trace = self.witness.trace
        hashed = hashlib.sha256()
        for line in trace:
            hashed.update(repr(line).encode())
        hashed.update(repr((self.world.now, self.world.steps, sorted(self.faults.counts.items()))).encode())
        return Result(
            seed=self.seed,
            simulated_s=self.world.now,
            steps=self.world.steps,
            events=len(self.witness.stored),
            jobs=len(self.witness.jobs),
            states=dict(Counter(job.state.value for job in self.witness.jobs.values())),
            faults=self.faults.counts,
            violations=violations,
            trace_hash=hashed.hexdigest(),
            trace=trace,
        )

    # Processes.

    def process(self, name: str) -> tuple[Process, SimConnection]:
        """Make a process with clocks of its own and a connection."""
        self._number += 1
        rate = self.random.uniform(0.956, 1.044) if self.random.random() < 0.5 else 1.0
        wall = self.random.choice((0.0, 0.0, 0.05, -0.05, 2.0, -2.0))
        process = Process(self.world, f"{name}{self._number}", rate=rate, wall_offset_s=wall)
        return process, SimConnection(process, self.server, self._number)

    async def client(self, process: Process, connection: SimConnection) -> Ledger:
        plain = cast("Connection", connection)
        inbox = Inbox(plain)
        await inbox.open()
        writer = Writer(plain, commit=self._config.commit)
        await writer.open()
        return await assemble(plain, inbox, writer, self.server.names, self._config, SimClock(process))

    def start_worker(self, slot: int) -> None:
        process, connection = self.process("w")
        self.workers[process] = None

        async def main() -> None:
            ledger = await self.client(process, connection)
            config = WorkerConfig(**self._settings, reactors=slot < self.hosts)
            worker = Worker(ledger, registry, config)
            self.workers[process] = worker
            await worker.run()

        task = process.create_task(main())
        task.add_done_callback(lambda done: self._on_worker_end(process, done))
        process.on_death.append(lambda: self._on_worker_death(process, slot))

    def _on_worker_end(self, process: Process, done: asyncio.Task[None]) -> None:
        """The program ended: stopped in order, or the server could not be reached at its start."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, LedgerError):
            self.errors.append(f"worker {process.name} ended with {error!r}")
        process.kill()

    def _on_worker_death(self, process: Process, slot: int) -> None:
        del self.workers[process]
        if not self.world.stopped:  # its supervisor starts another
            pause_s = self.random.choice((0.2, 3.0, 8.0)) * self.random.random()
            self.world.after(pause_s, self.start_worker, slot)

    # The end.

    def heal(self) -> None:
        """Let no fault happen from here on, and end those that last."""
        self.faults.end()
        for connection in self.server.connections:
            connection.held_until = 0.0
            connection.process.thaw()
            connection.find()

    def _look(self) -> None:
        if self.is_at_rest:
            self.world.stopped = True
        else:
            self.world.after(_LOOK_S, self._look)

    @property
    def is_at_rest(self) -> bool:
        return (
            not self.operations_left
            and self.witness.all_final
            and all(consumer.is_empty for consumer in self._consumers())
        )

    def _consumers(self) -> list[Any]:
        """Return what must be empty in the end; the reconciler's consumers look at everything long after."""
        streams = self.server.streams
        timers = streams.get(self.server.names.timers_stream)
        # One that set timers in a stream that is gone may be left until a worker starts; nobody reads it.
        current = "" if timers is None else self.server.names.timers_consumer(id_of(timers.created))
        return [
            each
            for stream in streams.values()
            for name, each in stream.consumers.items()
            if not name.startswith(("reconcile_", TIMERS_CONSUMER_PREFIX)) or name == current
        ]

    def _tolerance_s(self) -> float:
        """Return how early a timer may be: not at all, unless both clocks were set back just before its dispatch."""
        both = {"clock jump", "server clock jump"} <= self.faults.counts.keys()
        return _SET_BACK_S_MAX if both else 1.0

    def _violations(self, stuck: str) -> list[str]:
        found = [*self.errors, *self.witness.finish(self.acknowledged, tolerance_s=self._tolerance_s())]
        found += [error for process in self.world.processes for error in process.errors]
        found += [
            f"job {job} was created {count} times"
            for job, count in self.created.items()
            if count > 1 or (count < 1 and job not in self.unsure)
        ]
        if not self.faults.breaks_rules:
            found += self.runs.overlaps() + self.witness.stray_starts
        return [*found, stuck] if stuck else found

    def _describe_stuck(self, error: StuckError) -> str:
        waiting = [
            f"{job.id} is {job.state.value} ({len(job.attempts)} attempts)"
            for job in self.witness.jobs.values()
            if not job.is_final
        ]
        waiting += [
            f"{consumer.name}: fresh {list(consumer.fresh)}, again {list(consumer.again)}, "
            f"pending {sorted(consumer.pending)}"
            for consumer in self._consumers()
            if not consumer.is_empty
        ]
        waiting += [f"{self.operations_left} operations are left"] if self.operations_left else []
        return f"stuck ({error}): {'; '.join(waiting)}"


class Operators:
    """Clients that enqueue, and people who meddle."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._random = schedule.random

    def start(self) -> None:
        process, connection = self._schedule.process("c")
        _ = process.create_task(self._main(process, connection))

    async def _main(self, process: Process, connection: SimConnection) -> None:
        schedule, random = self._schedule, self._random
        ledger = await schedule.client(process, connection)
        span = random.choice((0.001, 0.05, min(schedule.faults.until, 10.0)))
        for number in range(schedule.job_count):
            name = f"j{number}"
            begin = random.uniform(0, span / 2)
            options: dict[str, Any] = {
                "id": name,
                "max_attempts": random.randint(1, 4),
                "priority": random.choice(("normal", "normal", "high", "low")),
                "timeout_s": random.choice((None, None, 2.0)),
                "delay_s": random.choice((None, None, None, 0.3, 2.0)),
            }
            kind = random.choice(KINDS)
            seconds = random.choice((0.0, 0.01, 0.3, 1.0, schedule.lease_s * random.uniform(0.3, 1.6)))
            arguments = (kind, seconds)
            self._plan(process, begin, self._enqueue(ledger, options, arguments))
            if random.random() < 0.2:
                self._plan(
                    process, begin + random.uniform(0, 0.02), self._enqueue(ledger, options, arguments)
                )
            for _ in range(random.choice((0, 0, 0, 1, 2))):
                at = begin + random.choice((0.002, 0.02, 0.5, span)) * random.random()
                self._plan(
                    process,
                    at,
                    self._meddle(ledger, name, random.choice(("cancel", "retry", "requeue", "discard"))),
                )

        schedule.operations_left -= 1

    def _plan(self, process: Process, after_s: float, operation: Any) -> None:
        self._schedule.operations_left += 1

        async def later() -> None:
            await asyncio.sleep(after_s)
            try:
                await operation
            except (RefusedError, NotFoundError):
                pass
            except Exception as error:  # noqa: BLE001 - nothing else may reach a user of the client
                self._schedule.errors.append(f"an operator got {error!r}")
            self._schedule.operations_left -= 1

        _ = process.create_task(later())

    async def _enqueue(self, ledger: Ledger, options: dict[str, Any], arguments: tuple[str, float]) -> None:
        schedule = self._schedule
        while True:
            try:
                handle = await ledger.enqueue(act.options(**options), *arguments)
            except LedgerError:
                schedule.unsure.add(options["id"])
                await asyncio.sleep(0.5)
                continue
            schedule.created[handle.id] += handle.created
            schedule.acknowledged.add(handle.id)
            return

    async def _meddle(self, ledger: Ledger, name: str, what: str) -> None:
        ref = JobRef(queue=QUEUE, job_id=name)
        patience = _MEDDLING_TRIES if what in ("requeue", "discard") else 1
        while patience:
            try:
                if what == "cancel":
                    await ledger.cancel(ref, reason="an operator")
                elif what == "retry":
                    await ledger.retry(ref)
                elif what == "requeue":
                    await ledger.execute(ref, Requeue(attempts=1))
                else:
                    await ledger.execute(ref, Discard())
            except (RefusedError, NotFoundError):
                patience -= 1
                await asyncio.sleep(1.0)
                continue
            except LedgerError:
                await asyncio.sleep(0.5)
                continue
            return


class Havoc:
    """What happens to processes, connections and clocks."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._random = schedule.random
        self._faults = schedule.faults

    def start(self) -> None:
        world, until = self._schedule.world, self._faults.until
        for kind, action in {
            "crash": self._crash,
            "freeze": self._freeze,
            "lost connection": self._lose,
            "held network": self._hold,
            "clock jump": self._jump,
            "server restart": self._restart,
            "server clock jump": self._server_jump,
            "stop": self._stop,
            "lost consumer": self._lose_consumer,
            "lost timers": self._lose_timers,
        }.items():
            if kind in self._faults.active:
                for _ in range(self._random.choice((1, 1, 2, 3))):
                    world.at(self._random.random() ** 2 * until, self._do, kind, action)
        if self._faults.active & {"crash", "freeze"}:
            self._watch_events()

    def _do(self, kind: str, action: Any) -> None:
        if not self._faults.over and self._schedule.workers:
            self._faults.note(kind)
            action()

    def _watch_events(self) -> None:
        """Aim at the moments that count: just after an event was stored, before its writer knows or acts."""
        witness = self._schedule.witness

        def on_stored(sequence: int) -> None:
            witness.on_stored(sequence)
            if self._faults.over or self._random.random() > 0.1:
                return
            writer = witness.stored[-1].event.by
            for process in self._schedule.workers:
                if writer.startswith(f"{process.name}-"):
                    self._light(process)

        self._schedule.server.on_stored = on_stored

    def _light(self, process: Process) -> None:
        kinds = [kind for kind in ("crash", "freeze") if kind in self._faults.active]
        kind = self._random.choice(kinds)
        self._faults.note(kind)
        (self._crash if kind == "crash" else self._freeze)(process)

    def _some_worker(self) -> Process:
        return self._random.choice(list(self._schedule.workers))

    def _crash(self, process: Process | None = None) -> None:
        process = process or self._some_worker()
        process.on_fuse = self._kill
        process.fuse = self._random.randint(1, 30)

    def _kill(self, process: Process) -> None:
        if self._faults.over:
            return
        connection = next(each for each in self._schedule.server.connections if each.process is process)
        if self._random.random() < 0.5:
            connection.generation += 1
        process.kill()

    def _freeze(self, process: Process | None = None) -> None:
        process = process or self._some_worker()
        process.on_fuse = self._stop_turns
        process.fuse = self._random.randint(1, 30)

    def _stop_turns(self, process: Process) -> None:
        if not self._faults.over:
            process.freeze()
            self._schedule.world.after(
                self._schedule.lease_s
                * self._random.choice((0.1, 0.5, 1.0, 1.5, 3.0))
                * self._random.random(),
                process.thaw,
            )

    def _some_connection(self) -> SimConnection:
        return self._random.choice(self._schedule.server.connections)

    def _lose(self) -> None:
        connection = self._some_connection()
        connection.lose()
        self._schedule.world.after(0.05 * 100 ** self._random.random(), connection.find)

    def _hold(self) -> None:
        connection = self._some_connection()
        connection.held_until = self._schedule.world.now + 0.1 * 200 ** self._random.random()

    def _jump(self) -> None:
        process = self._some_worker()
        process.wall_offset_s += self._random.choice((-8.0, 8.0, -3.0, 3.0, -1.0, 1.0))

    def _server_jump(self) -> None:
        self._schedule.server.clock.offset_s += self._random.choice((-6.0, 2.0, 6.0, 20.0))

    def _restart(self) -> None:
        server, world = self._schedule.server, self._schedule.world
        lasts = 0.1 * 100 ** self._random.random()
        for connection in list(server.connections):
            connection.lose()
            world.after(lasts + self._random.random(), connection.find)
        for stream in server.streams.values():
            for name, consumer in list(stream.consumers.items()):
                if consumer.config.get("mem_storage"):
                    server.lose_consumer(stream, name)
                else:
                    consumer.forget_recent_acks()

    def _lose_consumer(self) -> None:
        server = self._schedule.server
        streams = [stream for stream in server.streams.values() if stream.consumers]
        if streams:
            stream = self._random.choice(streams)
            server.lose_consumer(stream, self._random.choice(list(stream.consumers)))

    def _lose_timers(self) -> None:
        server = self._schedule.server
        server.lose_stream(server.names.timers_stream)

    def _stop(self) -> None:
        process = self._some_worker()
        worker = self._schedule.workers[process]
        if worker is not None:
            process.call_soon(worker.stop)
            if self._random.random() < 0.3:
                process.call_soon(worker.stop)

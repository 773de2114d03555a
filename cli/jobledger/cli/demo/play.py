"""`jobledger demo`: the standard library indexed by jobs, a worker killed half-way, and proof that nothing was lost."""

from __future__ import annotations

import contextlib
import sysconfig
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Self

import anyio
import typer
from rich.progress import Progress

from jobledger.admin.amounts import duration
from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.demo import report as demo_report
from jobledger.cli.demo.tasks import index_file
from jobledger.cli.demo.workers import CONCURRENCY, Crew, crew
from jobledger.cli.embedded import blamed, safety, until_ended
from jobledger.cli.errors import DemoFailedError, StoppedBySignalError
from jobledger.cli.groups import TOP
from jobledger.cli.output import Output, bar
from jobledger.cli.processes.options import Durability as DurabilityOption
from jobledger.cli.session import watch_signals
from jobledger.ledger import JobHandle, JobState, Ledger, connect
from jobledger.ledger.model.job import FINAL_STATES
from jobledger.ledger.server import Durability, EmbeddedServer
from jobledger.projections import Projector, Store

_WORKERS: Final = 2
_LIMIT_S: Final = 300.0
_FEW_FILES: Final = 1_000
_LOOK_EVERY_S: Final = 0.1
_LINES: Final = 10  #: progress lines where there is no terminal to draw a bar on
_ELSEWHERE: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


@command(TOP, "demo", takes=OFFLINE)
async def demo(
    cli: Cli,
    *,
    files_max: Annotated[
        int | None,
        typer.Option("--files", min=100, metavar="N", help="Index only the first N files. (default: all)"),
    ] = None,
    durability: DurabilityOption = "process",
) -> None:
    """Index the standard library, a job a file, on two workers of which one gets killed half-way."""
    await _demo(cli.output, files_max, durability)


async def _demo(output: Output, files_max: int | None, durability: Durability) -> None:
    """Everything the demo starts and stores lives in this block, and is gone after it, whatever happens."""
    async with anyio.create_task_group() as group:
        await group.start(watch_signals, _interrupt)
        with anyio.fail_after(_LIMIT_S), tempfile.TemporaryDirectory(prefix="jobledger-demo-") as folder:
            async with (
                EmbeddedServer(Path(folder) / "server", port=0, durability=durability) as server,
                blamed(server),
            ):
                group.start_soon(until_ended, server)
                async with connect(server.url, name="jobledger-demo") as ledger:
                    await _Show(output, ledger, server, Path(folder), files_max).play()
                group.cancel_scope.cancel()


def _interrupt() -> None:
    raise StoppedBySignalError


class _Show:
    """The acts of the demo, in order, and what one leaves to the next."""

    def __init__(
        self, output: Output, ledger: Ledger, server: EmbeddedServer, folder: Path, files_max: int | None
    ) -> None:
        self._output = output
        self._ledger = ledger
        self._server = server
        self._folder = folder
        self._root = Path(sysconfig.get_path("stdlib"))
        self._files = sorted(_sources(self._root))[:files_max]
        self._console = output.notes if output.as_json else output.console
        self._lost: list[JobHandle[Any]] = []
        self._before_kill = (0, 0.0)  #: jobs done, and in how many seconds

    async def play(self) -> None:
        """Enqueue, drain with a killing half-way, examine, report.

        Raises: DemoFailedError when anything does not agree.
        """
        self._say(f"nats-server runs at {self._server.url}, in a temporary folder")
        self._say(f"durability {self._server.durability}: {safety(self._server.durability)}")
        begun = time.monotonic()
        await self._enqueue()
        enqueued = time.monotonic()
        self._say(f"{len(self._files):,} files of {self._root} are {len(self._files):,} jobs now")
        async with self._projector() as projector, crew(self._server.url, self._folder) as workers:
            started = time.monotonic()
            for _ in range(_WORKERS):
                worker = await workers.start()
                self._say(f"worker {worker.identity} is ready, {CONCURRENCY} jobs at once")
            killed = await self._drain(projector, workers, started)
            ended = time.monotonic()
            await workers.stop()
            await projector.wait_for((await self._ledger.log.head()).last_sequence)
        timing = demo_report.Timing(
            enqueue_s=enqueued - begun,
            drain_s=ended - started,
            recovery_s=await self._recovery_s(killed),
            before_kill_jobs=self._before_kill[0],
            before_kill_s=self._before_kill[1],
        )
        await self._report(timing)

    async def _enqueue(self) -> None:
        numbers = {str(path): f"file-{number:05}" for number, path in enumerate(self._files, start=1)}
        inputs = ({"path": path} for path in numbers)
        done = await self._ledger.enqueue_many(index_file, inputs, ids=lambda values: numbers[values["path"]])
        if done.created != len(self._files):
            raise DemoFailedError(f"{done.created} jobs were made for {len(self._files)} files")

    @contextlib.asynccontextmanager
    async def _projector(self) -> AsyncGenerator[Projector, None]:
        """Follow the ledger in the background for the length of the block."""
        with Projector(self._ledger.log, self._folder / "projection.db") as projector:
            await projector.catch_up()
            async with anyio.create_task_group() as group:
                group.start_soon(projector.run)
                yield projector
                group.cancel_scope.cancel()

    async def _drain(self, projector: Projector, workers: Crew, started: float) -> float:
        """Wait until every job is final, and kill a worker half-way; return when that was, by the wall clock."""
        total, killed_at = len(self._files), 0.0
        with Store.open(projector.path) as store, _Meter(self._output, self._console, total) as meter:
            while True:
                counts = store.counts_by_state()
                done = sum(counts[state.value] for state in FINAL_STATES)
                waiting_for_lease = bool(killed_at) and counts["queued"] == 0 and done < total
                meter.update(done, "waiting for the dead worker's lease" if waiting_for_lease else "indexing")
                if done == total:
                    if not killed_at:
                        raise DemoFailedError(
                            "every job ended before a worker could be killed: raise --files"
                        )
                    return killed_at
                if not killed_at and done >= _kill_after(total):
                    self._before_kill = (done, time.monotonic() - started)
                    killed_at = await self._kill(projector, workers)
                workers.check()
                await anyio.sleep(_LOOK_EVERY_S)

    async def _kill(self, projector: Projector, workers: Crew) -> float:
        victim, self._lost = await workers.kill_one(self._ledger, projector)
        killed_at = time.time()
        held = ", ".join(handle.id for handle in self._lost)
        self._say(f"killed worker {victim.identity} with SIGKILL; it ran {held}", style="bold red")
        lease = duration(await self._ledger.leases.duration_s())
        self._say(f"others take these over when its lease is over, within {lease}")
        replacement = await workers.start()
        self._say(f"worker {replacement.identity} is started in its place")
        return killed_at

    async def _recovery_s(self, killed_at: float) -> float:
        ends = [(await handle.snapshot()).finished_at for handle in self._lost]
        return max((end.timestamp() - killed_at for end in ends if end is not None), default=0.0)

    async def _report(self, timing: demo_report.Timing) -> None:
        with Store.open(self._folder / "projection.db") as store:
            findings = await demo_report.examine(self._ledger, self._files, store, self._lost)
            if self._output.as_json:
                self._output.object(demo_report.as_object(findings, timing, self._lost))
            else:
                await demo_report.show(
                    self._output,
                    store=store,
                    root=self._root,
                    findings=findings,
                    timing=timing,
                    lost=self._lost,
                )
        if findings.faults:
            more = f" (and {len(findings.faults) - 1} more)" if len(findings.faults) > 1 else ""
            raise DemoFailedError(f"the counts do not agree: {findings.faults[0]}{more}")
        completed = findings.states[JobState.COMPLETED.value]
        dead = findings.states[JobState.DEAD_LETTERED.value]
        self._say()
        self._say(
            f"Every one of {findings.files:,} files has exactly one job with one final state: "
            f"{completed:,} completed, {dead:,} dead letters. Nothing was lost.",
            style="bold green",
        )

    def _say(self, text: str = "", *, style: str = "") -> None:
        if self._output.as_json:
            self._output.note(text)
        else:
            self._output.say(text, style=style)


def _kill_after(total: int) -> int:
    """Return after how many jobs a worker is killed: half-way, but at once where half-way is over in a blink."""
    return total // 2 if total >= _FEW_FILES else 1


class _Meter:
    """A bar on a terminal, and a line for every tenth of the way elsewhere."""

    def __init__(self, output: Output, console: Any, total: int) -> None:
        self._output = output
        self._console = console
        self._total = total
        self._bar: Progress | None = bar(console) if console.is_terminal else None
        self._tenth = 0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task("indexing", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=what)
        elif done * _LINES // self._total > self._tenth:
            self._tenth = done * _LINES // self._total
            self._console.print(f"{what}: {done:,} of {self._total:,}")


def _sources(root: Path) -> Iterator[Path]:
    """Yield every source file of the standard library; what is installed beside it is somebody else's."""
    for path in root.rglob("*.py"):
        if not _ELSEWHERE & set(path.relative_to(root).parts) and path.is_file() and str(path).isprintable():
            yield path

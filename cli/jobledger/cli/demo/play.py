"""`jobledger demo`: the standard library indexed by jobs, a worker killed half-way, and proof that nothing was lost."""

from __future__ import annotations

import contextlib
import sysconfig
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from jobledger.admin.amounts import duration
from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.demo import kept_store, tasks
from jobledger.cli.demo.fleet import APP, CONCURRENCY_OF_SHOP, SIGHTS, leave_fleet
from jobledger.cli.demo.report import DemoFigures, examine, show
from jobledger.cli.demo.tasks import index_file
from jobledger.cli.demo.workers import CONCURRENCY, Crew, crew
from jobledger.cli.embedded import blamed, safety, until_ended
from jobledger.cli.errors import DemoFailedError, StoppedBySignalError
from jobledger.cli.groups import TOP
from jobledger.cli.output import Output
from jobledger.cli.processes.options import Durability
from jobledger.cli.session import watch_signals
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.job import FINAL_STATES
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, Store

_WORKERS: Final = 2
_LIMIT_S: Final = 300.0
_FEW_FILES: Final = 1_000
_LOOK_EVERY_S: Final = 0.1
_ELSEWHERE: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


@command(TOP, "demo", takes=OFFLINE)
async def demo(
    cli: Cli,
    *,
    files_max: Annotated[
        int | None,
        typer.Option("--files", min=100, metavar="N", help="Index only the first N files. (default: all)"),
    ] = None,
    durability: Durability = "process",
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="DIR",
            help="Leave the ledger in this folder, in place of an earlier demo's, and say how to look at it in a "
            "browser. (default: leave nothing)",
        ),
    ] = None,
) -> None:
    """Index the standard library, one job per file, on two workers; one is killed half-way."""
    if keep is not None:
        kept_store.refuse_unfit(keep)
    root = Path(sysconfig.get_path("stdlib"))
    files = _sources(root)[:files_max]
    # All processes and files of the demo exist only within this block, except files that `keep` keeps.
    async with anyio.create_task_group() as group:
        await group.start(watch_signals, _interrupt)
        with anyio.fail_after(_LIMIT_S), tempfile.TemporaryDirectory(prefix="jobledger-demo-") as name:
            folder = Path(name)
            async with (
                EmbeddedServer(folder / "server", port=0, durability=durability) as server,
                blamed(server),
            ):
                group.start_soon(until_ended, server)
                _say(cli.output, f"nats-server runs at {server.url}, in a temporary folder")
                _say(cli.output, f"durability {durability}: {safety(durability)}")
                async with connect(server.url, name="jobledger-demo") as ledger:
                    played = await _play(cli.output, ledger, folder, root, files)
                    await _report(cli.output, ledger, folder, played)
                    if keep is not None:
                        await _leave(cli.output, ledger, folder)
                group.cancel_scope.cancel()
            if keep is not None:
                kept_store.keep(folder / "server", keep)
                _say(cli.output, "See all of it in a browser, at the address that this prints:")
                _say(cli.output, f"    {kept_store.command_for(keep, APP)}", style="bold")


def _sources(root: Path) -> list[Path]:
    """Return every source file of the standard library, without packages that are installed beside it."""
    inside = (path for path in root.rglob("*.py") if not _ELSEWHERE & set(path.relative_to(root).parts))
    return sorted(path for path in inside if path.is_file() and str(path).isprintable())


def _interrupt() -> None:
    raise StoppedBySignalError


async def _play(output: Output, ledger: Ledger, folder: Path, root: Path, files: list[Path]) -> DemoFigures:
    """Enqueue, let two workers drain it, kill one half-way, and wait for the end."""
    begun = time.monotonic()
    numbers = {str(path): f"file-{number:05}" for number, path in enumerate(files, start=1)}
    await ledger.enqueue_many(
        index_file, ({"path": path} for path in numbers), ids=lambda values: numbers[values["path"]]
    )
    enqueue_s = time.monotonic() - begun
    _say(output, f"{len(files):,} files of {root} are {len(files):,} jobs now")
    async with (
        _projecting(ledger, folder) as projector,
        crew(ledger.config.url, folder, tasks.__name__) as workers,
    ):
        started = time.monotonic()
        async with anyio.create_task_group() as starts:  # start both at once: the first must not do all jobs
            for _ in range(_WORKERS):
                starts.start_soon(_start, output, workers)
        total = len(files)
        # Kill half-way; but with few files after the first job, as they are done too soon.
        half = total // 2 if total >= _FEW_FILES else 1
        with Store.open(projector.path) as store:
            done = await _until(output, store, workers, "indexing", lambda done, _: done >= half)
            if done == total:
                raise DemoFailedError("every job ended before a worker could be killed: raise --files")
            before_kill_s = time.monotonic() - started
            lost = await _kill(output, ledger, projector, workers)
            killed_at = time.time()
            await _until(output, store, workers, "indexing", lambda _, queued: not queued)
            waiting = "waiting for the dead worker's lease"
            await _until(output, store, workers, waiting, lambda done, _: done == total)
        drain_s = time.monotonic() - started
        await workers.stop()
        await projector.wait_for((await ledger.log.head()).last_sequence)
    ends = [(await (await ledger.job(job_id)).snapshot()).finished_at for job_id in lost]
    return DemoFigures(
        root=root,
        files=files,
        lost=lost,
        enqueue_s=enqueue_s,
        drain_s=drain_s,
        before_kill_jobs=done,
        before_kill_s=before_kill_s,
        recovery_s=max((end.timestamp() - killed_at for end in ends if end is not None), default=0.0),
    )


@contextlib.asynccontextmanager
async def _projecting(ledger: Ledger, folder: Path) -> AsyncGenerator[Projector, None]:
    """Follow the ledger in the background for the length of the block."""
    with Projector(ledger.log, folder / "projection.db") as projector:
        await projector.catch_up()
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            yield projector
            group.cancel_scope.cancel()


async def _start(output: Output, workers: Crew) -> None:
    _say(output, f"worker {await workers.start()} is ready, {CONCURRENCY} jobs at once")


async def _until(
    output: Output, store: Store, workers: Crew, what: str, is_over: Callable[[int, int], bool]
) -> int:
    """Wait until `is_over` is true of the numbers of ended and queued jobs; return the number of ended ones."""
    with output.progress(what) as progress:
        while True:
            counts = store.counts_by_state()
            done = sum(counts[state.value] for state in FINAL_STATES)
            if is_over(done, counts["queued"]):
                return done
            progress(done, sum(counts.values()))
            workers.check()
            await anyio.sleep(_LOOK_EVERY_S)


async def _kill(output: Output, ledger: Ledger, projector: Projector, workers: Crew) -> list[str]:
    """Kill a worker, start another in its place, and return the ids of the jobs that it ran."""
    victim, held = await workers.kill_one(ledger, projector)
    running = ", ".join(row.id for row in held)
    _say(output, f"killed worker {victim} with SIGKILL; it ran {running}", style="bold red")
    lease = duration(await ledger.leases.duration_s())
    _say(output, f"other workers take these jobs over when its lease expires, within {lease}")
    _say(output, f"worker {await workers.start()} replaces it")
    return [row.id for row in held]


async def _report(output: Output, ledger: Ledger, folder: Path, played: DemoFigures) -> None:
    """Show the findings from the ledger. Raises: DemoFailedError if anything does not agree."""
    with Store.open(folder / "projection.db") as store:
        found = await examine(ledger, store, played)
        if output.as_json:
            output.object(found)
        else:
            await show(output, ledger, store, found, played)
    if found.faults:
        more = f" (and {len(found.faults) - 1} more)" if len(found.faults) > 1 else ""
        raise DemoFailedError(f"the counts do not agree: {found.faults[0]}{more}")
    _say(output)
    _say(
        output,
        f"Every one of {len(played.files):,} files has exactly one job with one final state: "
        f"{found.states.get('completed', 0):,} completed, {found.states.get('dead_lettered', 0):,} dead letters. "
        "Nothing was lost.",
        style="bold green",
    )


async def _leave(output: Output, ledger: Ledger, folder: Path) -> None:
    """Add the shop's jobs to the store that is kept, and print the searches that find them."""
    _say(output)
    _say(output, "A small shop works beside it, so that there is more to look at ...")
    async with crew(ledger.config.url, folder, APP, CONCURRENCY_OF_SHOP) as workers:
        await workers.start()
        await leave_fleet(ledger)
    if not output.as_json:
        output.table(("what waits for you", "find it by"), SIGHTS)
    _say(output)


def _say(output: Output, text: str = "", *, style: str = "") -> None:
    if output.as_json:
        output.note(text)
    else:
        output.say(text, style=style)

"""`jobledger audit seal`: sign new events of the ledger, once or as they come.

Only this command has the key: no worker holds it, so the code of tasks cannot sign.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Annotated

import anyio
import typer

from jobledger.audit.seals.keys import Signer, read_signer
from jobledger.audit.seals.seals import Seal, each_seal, newest_seal, read_published, seal_next, signed_text
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.output import Output
from jobledger.cli.session import operator, until_closed, watch_signals
from jobledger.cli.times import seconds
from jobledger.ledger import Ledger
from jobledger.ledger.files import open_to_write
from jobledger.ledger.model.chain import retry_raced
from jobledger.workers.reactors.reactor import host
from jobledger.workers.reactors.sealer import EVENTS_DEFAULT, INTERVAL_S_DEFAULT, Sealer, SealingConfig

SealKey = Annotated[
    Path,
    typer.Option(
        "--key", envvar="JOBLEDGER_SEAL_KEY", metavar="FILE", help="Private key, as `audit keygen` makes it."
    ),
]


@command(AUDIT, "seal")
async def seal(
    cli: Cli,
    *,
    key: SealKey,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", metavar="", help="Continue to seal new events until Ctrl-C."),
    ] = False,
    events: Annotated[
        int,
        typer.Option("--every", min=1, metavar="N", help="With --follow, seal after this many events."),
    ] = EVENTS_DEFAULT,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SPAN",
            parser=seconds(),
            help="With --follow, seal after this long if events were added.",
        ),
    ] = INTERVAL_S_DEFAULT,
    publish: Annotated[
        Path | None,
        typer.Option(
            "--publish",
            metavar="FILE",
            help="Append each seal to this file, one a line, before it is printed.",
        ),
    ] = None,
) -> None:
    """Sign the range of the ledger that no seal covers yet, up to its head as it is now."""
    config = SealingConfig(events=events, interval_s=interval)
    if publish is not None and not publish.absolute().parent.is_dir():
        raise UsageError(f"--publish {publish}: there is no folder {publish.absolute().parent}")
    signer = read_signer(key)
    publisher = _Publisher(publish, signer) if publish is not None else None
    if follow:
        await _follow(cli, signer, config, publisher)
    else:
        await _seal(cli, signer, publisher)


class _Publisher:
    """The file of published seals. Seals that could not be added to it, also by an earlier run, go before the next."""

    def __init__(self, path: Path, signer: Signer) -> None:
        self._path = path
        self._signer = signer
        self._waiting: list[Seal] = []

    async def begin(self, ledger: Ledger) -> None:
        """Publish the ledger's seals by our key that are newer than the file's newest.

        Raises: OSError, ConfigurationError, InvalidInputError, and as `each_seal`.
        """
        published = read_published(self._path, begun=False)
        environment = ledger.names.environment
        ours = (each.stream_sequence for each in published if each.environment == environment)
        reached = max(ours, default=0)
        async with contextlib.aclosing(each_seal(ledger.log)) as found:
            async for each in found:
                if each.stream_sequence > reached and self._is_ours(each):
                    self._waiting.append(each)
        self._write()

    def _is_ours(self, each: Seal) -> bool:
        return each.seal.signature == self._signer.sign(signed_text(each.seal, each.environment))

    def add(self, made: Seal) -> None:
        """Publish a seal. Raises: OSError; the seal is then tried again with the next one."""
        self._waiting.append(made)
        self._write()

    def _write(self) -> None:
        """Append the waiting seals as lines; they are on the disk when this returns."""
        if not self._waiting:
            return
        with open_to_write(self._path, "ab+") as file:
            if _is_broken_off(file):
                file.write(b"\n")
            file.write("".join(f"{each.line()}\n" for each in self._waiting).encode())
            file.flush()
            os.fsync(file.fileno())
        self._waiting.clear()


def _is_broken_off(file: IO[bytes]) -> bool:
    if not file.seekable() or not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


async def _seal(cli: Cli, signer: Signer, publisher: _Publisher | None) -> None:
    output, made = cli.output, 0
    async with cli.ledger() as ledger:
        if publisher is not None:
            await publisher.begin(ledger)
        with output.progress("sealing") as progress:
            last = (await ledger.log.head()).last_sequence
            while (found := await _seal_once(ledger, signer)) is not None:
                if publisher is not None:
                    publisher.add(found)
                _show_made(output, found)
                made += 1
                progress(min(found.seal.to_sequence, last), last)
                if found.seal.to_sequence >= last:
                    break
    if not made and not output.as_json:
        output.say("no events were added since the newest seal")


async def _seal_once(ledger: Ledger, signer: Signer) -> Seal | None:
    """Seal the next range; if another sealer was faster, less or nothing is left to seal."""

    async def attempt() -> Seal | None:
        return await seal_next(ledger.log, signer, by=operator(), at=ledger.clock.now())

    return await retry_raced(attempt)


async def _follow(cli: Cli, signer: Signer, config: SealingConfig, publisher: _Publisher | None) -> None:
    output = cli.output

    def tell(made: Seal) -> None:
        if publisher is not None:
            try:
                publisher.add(made)
            except OSError as error:  # go on sealing: events that stay unsealed cannot be proven later
                output.note(
                    f"a seal could not be published, and is published with the next one: {error.strerror}"
                )
        with output.telling():
            _show_made(output, made)

    async with cli.ledger() as ledger, anyio.create_task_group() as group:
        if publisher is not None:
            await publisher.begin(ledger)
        await group.start(watch_signals, group.cancel_scope.cancel)
        group.start_soon(until_closed, ledger)
        newest = await newest_seal(ledger.log)
        with output.telling():
            since = newest.seal.to_sequence if newest is not None else 0
            output.say(f"sealing events after stream sequence {since:,}; stop with Ctrl-C")
        await host(ledger, Sealer(ledger, signer, config, on_seal=tell))


def _show_made(output: Output, made: Seal) -> None:
    if output.as_json:
        output.raw(made.line())
        return
    found = made.seal
    output.say(f"sealed {found.from_sequence:,} to {found.to_sequence:,}: {found.merkle_root}")

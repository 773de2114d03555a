"""`connect`: open a ledger for the length of a block."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.config import LedgerConfig, with_variables
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import InvalidInputError, JetStreamDisabledError, UnreachableError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.addresses import shown
from jobledger.ledger.nats.connection import Connection, open_connection
from jobledger.ledger.nats.fleet_clock import FleetClock
from jobledger.ledger.nats.hints import Hints
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.nats.leases import JetStreamLeases
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.nats.payloads import Payloads
from jobledger.ledger.nats.streams import (
    RESULTS_LIFE_S,
    StreamSpec,
    check_streams,
    ensure_streams,
    find_stream,
    require_ledger,
    specifications,
)
from jobledger.ledger.nats.writer import Writer
from jobledger.ledger.patience import Patience

if TYPE_CHECKING:
    from jobledger.ledger.masters import Masters

#: Replicas of later streams, by the replicas of the ledger: an even number survives no more losses than one less.
_REPLICAS: Final = {1: 1, 2: 3, 3: 3, 4: 5, 5: 5}
_ON_CLUSTER: Final = 3  #: default replicas of a ledger created on a cluster
#: Default limit of a connect and of each call of an application on a cluster: an election takes 4 to 9 s, and twice
#: that if votes are split.
_ELECTION_S: Final = 20.0
_PATIENT: Final = ("connect_timeout_s", "request_timeout_s")
logger = logging.getLogger("jobledger.connection")


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None, *, clock: Clock | None = None, **settings: Any
) -> AsyncGenerator[Ledger, None]:
    """Open a ledger for the length of the block; `settings` are those of `LedgerConfig`.

    Without `url` it is the server that the environment variable JOBLEDGER_URL names, else the one on this machine;
    without `environment` the one that JOBLEDGER_ENVIRONMENT names. `context="prod"`, or JOBLEDGER_CONTEXT, names a context
    of the `nats` command in the place of a `url`: its file has the server, the credentials and the settings of TLS.

    Missing streams are created; existing ones are checked and never changed. With `create=False` none is created, so
    that a program that only reads cannot mistake a new, empty ledger for the intended one. The ledger belongs to the
    running event loop: its verbs raise `ForeignLoopError` in another one or in a forked child, and `LedgerClosedError`
    after the block.

    The server's time counts, whatever this machine's clock shows; pass a `clock` only in tests that control time.

    Raises: InvalidInputError for a setting that does not exist, ConfigurationError, ServerUnreachableError,
    UnsupportedServerError, JetStreamDisabledError, StreamMismatchError, LedgerFullError; with `create=False`
    LedgerNotFoundError.
    """
    given, config = _configured(url, settings)
    names = Names(config.environment)
    async with _client(config) as (connection, inbox, writer):
        if connection.is_clustered:
            unsaid = {name: _ELECTION_S for name in _PATIENT if name not in given}
            config = await _on_cluster(connection, inbox, names, msgspec.structs.replace(config, **unsaid))
        else:
            config = msgspec.structs.replace(config, replicas=config.replicas or 1)
            await _streams(inbox, names, config, _specifications(names, config))
        async with _time(clock, inbox, names) as time:
            ledger = await assemble(connection, inbox, writer, names, config, time)
            await ledger.patience.read(ledger.learn_form)
            try:
                yield ledger
            finally:
                ledger.throttle.close()
                await ledger.locks.close()
                await ledger.reader_leases.close()
                if isinstance(ledger.keys, OwnerKeys) and ledger.keys.masters is not None:
                    await ledger.keys.masters.close()


@contextlib.asynccontextmanager
async def connect_without_streams(
    url: str | None = None, *, clock: Clock, **settings: Any
) -> AsyncGenerator[Ledger, None]:
    """Open a client for the length of the block, without a look at the streams: for code that restores them.

    Raises: as `connect` for a setting or a server.
    """
    _, config = _configured(url, settings)
    async with _client(config) as (connection, inbox, writer):
        yield await assemble(connection, inbox, writer, Names(config.environment), config, clock)


def _configured(url: str | None, settings: dict[str, Any]) -> tuple[dict[str, Any], LedgerConfig]:
    """Return the given settings, and the full settings that follow. Raises: InvalidInputError, ConfigurationError."""
    try:
        given = settings if url is None else {"url": url, **settings}
        return given, LedgerConfig(**with_variables(given, os.environ))
    except TypeError as error:
        raise InvalidInputError(str(error)) from error


@contextlib.asynccontextmanager
async def _client(config: LedgerConfig) -> AsyncGenerator[tuple[Connection, Inbox, Writer], None]:
    """Yield a connection for the length of the block. Raises: as `open_connection`."""
    connection = await open_connection(
        config.url,
        name=config.name,
        timeout_s=config.connect_timeout_s,
        access=config,
        inbox_prefix=config.inbox_prefix,
        prefetch_max=config.prefetch_max,
        options=config.nats_options,
    )
    writer: Writer | None = None
    try:
        inbox = Inbox(connection)
        await inbox.open()
        writer = Writer(connection, commit=config.commit)
        await writer.open()
        yield connection, inbox, writer
    finally:
        connection.is_retired = True
        if writer is not None:
            writer.close()
        with contextlib.suppress(Exception):  # the block's own error is the one that counts
            await connection.close()


async def _on_cluster(
    connection: Connection, inbox: Inbox, names: Names, config: LedgerConfig
) -> LedgerConfig:
    """Create or check the streams, and return the settings with the number of copies. Raises: as `connect`."""
    patience = Patience(connection, config.connect_timeout_s)
    config = await patience.read(lambda: _with_replicas(inbox, names, config))
    await patience.read(lambda: _streams_of_cluster(inbox, names, config))
    return config


async def _with_replicas(inbox: Inbox, names: Names, config: LedgerConfig) -> LedgerConfig:
    """Return the settings for a cluster: new streams have as many copies as the ledger, if there is one."""
    info = await find_stream(inbox, names.ledger_stream)
    if info is not None:
        replicas = _REPLICAS.get(info.config.get("num_replicas", 1), 1)
    else:
        replicas = config.replicas or _ON_CLUSTER
        if config.create:
            logger.info("a ledger is made on a cluster, with %d copies of each stream", replicas)
    return msgspec.structs.replace(config, replicas=replicas)


async def _streams_of_cluster(inbox: Inbox, names: Names, config: LedgerConfig) -> None:
    """Create or check the ledger's stream, and those other streams whose servers answer. Raises: as `connect`.

    A client that needs another stream learns at its first request that this stream is away.
    """
    ledgers, *others = _specifications(names, config)
    await _streams(inbox, names, config, [ledgers])
    look = ensure_streams if config.create else check_streams
    looks = (look(inbox, [each]) for each in others)
    for error in await asyncio.gather(*looks, return_exceptions=True):
        if isinstance(error, JetStreamDisabledError | UnreachableError):
            logger.info("%s; going on without it", error)
        elif error is not None:
            raise error


async def _streams(inbox: Inbox, names: Names, config: LedgerConfig, specs: list[StreamSpec]) -> None:
    """Create missing streams, or only check the streams. Raises: as `connect`."""
    if config.create:
        await ensure_streams(inbox, specs)
    else:
        await require_ledger(inbox, names, shown(config.url))
        await check_streams(inbox, specs)


def _specifications(names: Names, config: LedgerConfig) -> list[StreamSpec]:
    return specifications(
        names,
        ledger_bytes_max=config.ledger_bytes_max,
        lease_s=config.lease_s,
        replicas=config.replicas,
    )


@contextlib.asynccontextmanager
async def _time(clock: Clock | None, inbox: Inbox, names: Names) -> AsyncGenerator[Clock, None]:
    """Yield a clock with the server's time for the length of the block, unless the caller passed a clock."""
    time = FleetClock() if clock is None else clock
    if not isinstance(time, FleetClock):
        yield time
        return
    await time.compare(inbox, names.ledger_stream)
    keeping = asyncio.create_task(time.keep(inbox, names.ledger_stream), name="clock")
    try:
        yield time
    finally:
        keeping.cancel()


def _masters(source: str) -> Masters:
    from jobledger.ledger.masters import masters_of  # noqa: PLC0415 - most processes have no master key

    return masters_of(source, os.environ)


async def assemble(  # noqa: PLR0917 - the parts of one client
    connection: Connection,
    inbox: Inbox,
    writer: Writer,
    names: Names,
    config: LedgerConfig,
    clock: Clock,
) -> Ledger:
    """Return a ledger on a connection, without a look at its streams."""
    log = JetStreamLog(
        connection,
        inbox,
        writer,
        names=names,
        append_timeout_s=config.append_timeout_s,
    )
    masters = _masters(config.master_key) if config.master_key else None
    keys = config.sealing or OwnerKeys(inbox, writer, names, masters, log=log, replicas=config.replicas or 1)
    payloads = functools.partial(
        Payloads,
        connection,
        keys=keys,
        inline_bytes_max=config.inline_bytes_max,
        payload_bytes_max=config.payload_bytes_max,
        clock=clock,
    )
    hints = Hints(connection, names)
    await hints.open()
    return Ledger(
        connection=connection,
        inbox=inbox,
        log=log,
        leases=JetStreamLeases(connection, inbox, writer, names),
        hints=hints,
        inputs=payloads(names.payloads_bucket),
        results=payloads(names.results_bucket, life_s=RESULTS_LIFE_S),
        keys=keys,
        config=config,
        clock=clock,
    )

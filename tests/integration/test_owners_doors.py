"""What reaches jobs that have an owner from elsewhere: signals of routes, and keys that the application has itself."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest
from tests.integration.test_owners import Connect, fails, greet, keeps, master_file, work
from tests.integration.test_route_signals import BODY, TO_RUN, announce, internal, order
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.admin.erasure import keys_of
from jobledger.audit.why import explain, find_facts
from jobledger.ledger import (
    ErasedError,
    JobState,
    KeyUnavailableError,
    Ledger,
    RefusedError,
    Unique,
)
from jobledger.ledger.model.seals import Kind
from jobledger.ledger.nats.streams import find_stream

pytestmark = pytest.mark.anyio
WORD = "Canary-Jane-4417"


async def in_clear(ledger: Ledger, word: str) -> list[str]:
    """Return the subjects of events that have a word."""
    found: list[str] = []
    async for portion in ledger.log.read_messages():
        found += [each.subject for each in portion if word.encode() in each.data]
    return found


async def test_a_rule_signals_a_run_that_has_an_owner(connected: Connect, tmp_path: Any) -> None:
    begins = {**TO_RUN, "task": "order", "queue": "", "input": {"customer": "/by"}, "owner": "person:18"}
    large = f"{WORD}-" * 9_000
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await announce(ledger)
        await ledger.routes.set("pay", internal(**TO_RUN))
        await ledger.routes.set("begin", internal(**begins))
        runs = [
            await ledger.enqueue(order.options(id=each, owner="person:17"), customer="bea")
            for each in ("o-7", "o-8")
        ]
        for each, by in zip(runs, (WORD, large), strict=True):
            (said,) = (await ledger.emit("pay", {**BODY, "order": each.id, "by": by})).matched
            assert (said.job, said.refused) == (each.id, "")
        (said,) = (await ledger.emit("begin", {**BODY, "order": "o-9", "by": WORD})).matched
        assert (said.job, said.refused) == ("o-9", "")
        begun = await ledger.job("o-9")
        assert (await begun.snapshot()).order.key == "person:18/1"
        async with working(ledger, order):
            for each, by, customer in zip(
                (*runs, begun), (WORD, large, WORD), ("bea", "bea", WORD), strict=True
            ):
                assert await each.result(timeout_s=LIMIT_S) == [customer, by, 500]
        assert await in_clear(ledger, WORD) == []


async def test_a_rule_signals_no_run_whose_key_is_away_or_erased(connected: Connect, tmp_path: Any) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, connected() as poor:
        await announce(ledger)
        await ledger.routes.set("pay", internal(**TO_RUN))
        run = await ledger.enqueue(order.options(id="o-7", owner="person:17"), customer="bea")
        with pytest.raises(KeyUnavailableError, match="JOBLEDGER_MASTER_KEY"):
            await poor.emit("pay", BODY, id="d1")
        await keys_of(ledger).destroy("person:17", 1, ledger.clock.now())
        (said,) = (await ledger.emit("pay", BODY, id="d1")).matched  # the one before was recorded nowhere
        assert said.refused.startswith("the data of owner person:17 was erased")
        assert (await run.snapshot()).signals == ()


class Reversed:
    """A key of an application's own scheme, which is no good one."""

    def __init__(self, id: str, salt: bytes) -> None:  # noqa: A002 - as the protocol has it
        self.id = id
        self._salt = salt

    def seal(self, kind: Kind, text: bytes) -> bytes:
        return kind.encode() + self._salt + text[::-1]

    def unseal(self, kind: Kind, blob: bytes) -> bytes:
        mark = kind.encode() + self._salt
        assert blob.startswith(mark)
        return blob[len(mark) :][::-1]

    def index(self, text: bytes) -> str:
        return f"{hash((self._salt, text)) & (1 << 160) - 1:040x}"


class OwnKeys:
    """A `KeyHolder` of an application, which has lost some keys."""

    def __init__(self) -> None:
        self.keys: dict[str, Reversed] = {}
        self.erased: set[str] = set()

    async def key_for(self, owner: str) -> Reversed:
        await asyncio.sleep(0)
        return self.keys.setdefault(owner, Reversed(f"{owner}/1", secrets.token_bytes(8)))

    async def key(self, key_id: str) -> Reversed:
        owner = key_id.rpartition("/")[0]
        if owner in self.erased:
            raise ErasedError(key_id)
        if owner not in self.keys:
            raise KeyUnavailableError(f"the vault does not know {key_id}")
        return self.keys[owner]


async def test_an_application_may_have_a_scheme_of_its_own(connected: Connect) -> None:
    vault = OwnKeys()
    async with connected(sealing=vault) as ledger, connected() as poor:
        owned: dict[str, Any] = {"owner": "person:17"}
        done = await ledger.enqueue(greet, person=17, text=WORD)
        large = await ledger.enqueue(greet.options(id="large"), person=17, text=WORD * 6_000)
        kept = await ledger.enqueue(keeps.options(**owned), text=WORD)
        dead = await ledger.enqueue(
            fails.options(unique=Unique(), metadata={"who": WORD}, **owned), text=WORD
        )
        again = await ledger.enqueue(fails.options(unique=Unique(), **owned), text=WORD)
        assert again.id == dead.id
        await work(ledger, done, large, kept, dead)
        assert (await done.result(), await kept.result()) == (f"hello {WORD}", WORD)
        assert len(await large.result()) == len(f"hello {WORD * 6_000}")
        assert (await dead.snapshot()).state is JobState.DEAD_LETTERED
        assert await in_clear(ledger, WORD) == []
        assert await find_stream(ledger.inbox, f"KV_{ledger.names.keys_bucket}") is None
        with pytest.raises(RefusedError, match="destroy them where sealing= has them"):
            keys_of(ledger)
        with pytest.raises(KeyUnavailableError, match="person:17/1 is not in the bucket"):
            await poor.inputs.get((await done.snapshot()).order.input, None, key="person:17/1")
        waits = await ledger.enqueue(greet.options(id="waits"), person=17, text=WORD)
        job = await waits.snapshot()
        assert explain(job, await find_facts(ledger, job)).sentence, (
            "it says something without a bucket of keys"
        )
        vault.erased.add("person:17")
        await work(ledger, waits)
        assert (await waits.snapshot()).cancel_reason == "erased"
        with pytest.raises(ErasedError):
            await done.result()

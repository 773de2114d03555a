"""Each verb, done through each door, does the same and answers the same."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import msgspec
import pytest
from tests.support.gateways import listening
from tests.support.open_gateway import LocalAccess
from tests.support.verbs import BEFORE, EXAMPLES, OF_DEAD_LETTERS
from tests.unit.test_doors import declared

from jobledger.admin.verbs.jobs import JobVerb
from jobledger.admin.verbs.kit import Declaration, Place, Verb, fields_of
from jobledger.cli.main import run
from jobledger.gateway.client import connect, sync
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import Ledger, task
from jobledger.ledger import sync as blocking
from jobledger.ledger.model.commands import Claim, DeadLetter
from jobledger.ledger.model.errors import AccessDeniedError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS

pytestmark = pytest.mark.anyio
_DERIVED: Final = re.compile(r"\bw-[\w-]{43}")  #: an id that is made of a route's name and a delivery
_NUMBER: Final = re.compile(
    r"-(manual-\d+|test-[0-9a-f]{12})"
)  #: what a job has of the event that made it, or by chance
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)")


class Nobody(LocalAccess):
    """Lets everybody in, and nobody may do anything."""

    def principal(self, connection: object) -> Principal:
        return Principal(name="key:nobody/1", permissions=frozenset())


# `verify=False` below: there is no TLS here, and to read the certificates of all authorities takes 20 ms for each client.
Door = Callable[[Verb[Any]], Awaitable[Any]]


def words_of(wish: Verb[Any], folder: Path) -> list[str]:
    """Return the words of the command that says the same. `folder`: for the files that it reads."""
    declaration = wish.declaration
    found, last = declaration.command.split(), []
    for field in fields_of(type(wish)):
        value = getattr(wish, field.name)
        if field.is_argument_of(declaration):
            last.append(value)
        elif value is msgspec.UNSET or value == field.default:
            continue
        elif field.kind is bool:
            found.append(field.flag)
        elif field.is_pairs:
            found += (word for pair in value.items() for word in (field.flag, "=".join(pair)))
        elif field.file:
            (folder / field.name).write_bytes(value if field.kind is bytes else msgspec.json.encode(value))
            found += (field.file, str(folder / field.name))
        else:
            many = value if field.is_many else [value]
            found += (word for each in many for word in (field.flag, "none" if each is None else str(each)))
    return [*found, *last]


def plain(found: Any, name: str) -> Any:
    """Return an answer without what differs from one door to the next: names, times, sequences, and who acted."""
    text = _MOMENT.sub("TIME", msgspec.json.encode(found, order="sorted").decode()).replace(name, "NAME")
    text = re.sub(r'"(\w*sequence)":\d+', r'"\1":0', _NUMBER.sub("-N", _DERIVED.sub("w-ID", text)))
    text = re.sub(r'"(secret":"[^"]*|key":"[a-z0-9]{12})"', '"made":""', text)  # of keys, by chance
    text = re.sub(r'"trace_id":"[0-9a-f]{32}"', '"trace_id":"TRACE"', text)
    return msgspec.json.decode(re.sub(r'"(\w*by)":"[^"]*"', r'"\1":"WHO"', text))


@task(queue="mail", max_attempts=1)
async def send(to: str) -> None: ...


async def prepare(ledger: Ledger, name: str, *, is_dead: bool) -> None:
    """Add a job of a name: a dead letter, or one that is due later."""
    job = await ledger.enqueue(send.options(id=name, delay_s=0 if is_dead else 3_600), to="ann")
    if is_dead:
        claimed = await ledger.execute(job.ref, Claim(worker="w-1", lease_s=15))
        await ledger.execute(job.ref, DeadLetter(epoch=claimed.claim_epoch, reason="exhausted"))


@pytest.mark.parametrize("declaration", [each for _, each in declared()], ids=lambda each: each.command)
async def test_every_door_does_and_answers_the_same(
    declaration: Declaration,
    ledger: Ledger,
    gateway: Gateway,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    needs_rows = declaration.reads_rows and not issubclass(declaration.verb, JobVerb)
    rows = tmp_path / "rows.db" if needs_rows else None
    async with listening(gateway) as url, connect(url, verify=False) as remote:

        async def by_command(wish: Verb[Any]) -> Any:
            where = ("--url", ledger.config.url, "--environment", ledger.names.environment, "--json")
            code = await anyio.to_thread.run_sync(run, [*words_of(wish, tmp_path), *where])
            shown = capsys.readouterr()
            assert code == 0, shown.err
            lines = [msgspec.json.decode(line) for line in shown.out.splitlines()]
            return {"items": lines} if wish.declaration.is_list else lines[0]

        def blocked(wish: Verb[Any]) -> Any:
            with blocking.connect(ledger.config.url, environment=ledger.names.environment) as made:
                return made.do(wish, projection=rows)

        def blocked_remote(wish: Verb[Any]) -> Any:
            with sync.connect(url, verify=False) as made:
                return made.do(wish)

        doors: dict[str, Door] = {
            "python": lambda wish: ledger.do(wish, projection=rows),
            "blocking": lambda wish: anyio.to_thread.run_sync(blocked, wish),
            "command": by_command,
            "remote": remote.do,
            "remote-blocking": lambda wish: anyio.to_thread.run_sync(blocked_remote, wish),
        }
        if declaration.has_own_command:  # its command has a choice of its own
            del doors["command"]
        answers: dict[str, Any] = {}
        for name, door in doors.items():
            if issubclass(declaration.verb, JobVerb):
                await prepare(ledger, name, is_dead=declaration.verb in OF_DEAD_LETTERS)
            for before in BEFORE.get(declaration.verb, ()):
                await before(ledger, name)
            answers[name] = plain(await door(EXAMPLES[declaration.verb](name)), name)
    assert list(answers.values()) == [answers["python"]] * len(doors)


@pytest.mark.parametrize("declaration", [each for _, each in declared()], ids=lambda each: each.command)
async def test_no_door_forgets_the_right(declaration: Declaration, gateway: Gateway) -> None:
    wish = EXAMPLES[declaration.verb]("a")
    with pytest.raises(AccessDeniedError, match="lacks the permission"):  # what every door calls
        await wish.perform(Place(gateway.ledger, gateway.rows, Nobody().principal(None)))
    if declaration.about == "everything":  # a right for one queue is none for what belongs to no queue
        bound = Principal(name="key:mail/1", permissions=frozenset(PERMISSIONS), queues=("mail",))
        with pytest.raises(AccessDeniedError, match="is bound to some queues"):
            await wish.perform(Place(gateway.ledger, gateway.rows, bound))
    gateway.access = Nobody()
    async with listening(gateway) as url, connect(url, verify=False) as remote:
        with pytest.raises(Exception, match="lacks the permission"):
            await remote.do(wish)

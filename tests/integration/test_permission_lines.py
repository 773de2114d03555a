"""Each line that `jobledger permissions` prints, taken away in turn; and each act of every other role, tried.

On a server without a stream: what counts is what it lets through, and what the client says of what it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pytest
from tests.support.roles import authorization, printed, user
from tests.support.secured import Secured, secured

from jobledger.admin.permissions import (
    BOUND,
    PARTS,
    ROLES,
    Right,
    SubjectLists,
    as_configuration,
    example,
    let_through,
    parts_of,
)
from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.nats.access import Access, inbox_of
from jobledger.ledger.nats.connection import open_connection

pytestmark = pytest.mark.anyio
#: Words of the command for each role, beside its name.
WORDS: Final = {role: ("--queue", "mail") if role in BOUND else () for role in ROLES} | {
    "subscriber": ("--subscription", "bills")
}
#: A subject of the table, as `verb subject`, by which it was tried.
Tried = tuple[str, str]


def lists(role: str) -> SubjectLists:
    return SubjectLists(**msgspec.json.decode(printed(role, *WORDS[role], "--json")))


def lines(role: str) -> list[Tried]:
    """Return what a role's user may, a line each."""
    return [(verb, each) for verb, subjects in lists(role)._asdict().items() for each in subjects]


def without(found: Sequence[Tried], line: Tried) -> SubjectLists:
    left = [each for each in found if each != line]
    return SubjectLists(
        *([subject for verb, subject in left if verb == which] for which in SubjectLists._fields)
    )


@pytest.fixture(scope="module")
def server(nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A user for each role, and one for each of its lines that has all of them but that one."""
    users: list[str] = []
    for role in ROLES:
        found = lines(role)
        users.append(user(role, printed(role, *WORDS[role])))
        users += [
            user(f"{role}_{number}", as_configuration(without(found, line), about=role))
            for number, line in enumerate(found)
        ]
    with secured(nats_server_binary, tmp_path_factory.mktemp("lines"), authorization(*users)) as running:
        yield running


async def refused(server: Secured, name: str, tried: Sequence[Tried]) -> dict[Tried, str]:
    """Publish and subscribe as a user; return what was refused, with the sentence of the client."""
    found: dict[Tried, str] = {}

    def note(error: PermissionRefusedError) -> bool:
        found[error.verb, error.subject] = str(error)
        return True

    access = Access(user=name, password="p")
    connection = await open_connection(server.url(), name=name, timeout_s=5.0, access=access)
    connection.refused_listeners.append(note)
    try:
        for verb, subject in tried:
            if verb == "publish":
                connection.send(subject, "", b"", b"")
            else:
                await connection.subscribe(subject)
        await (
            connection.flush()
        )  # nats-py's ping overtakes what waits to be sent, and the second one does not
        await connection.flush()
    finally:
        await connection.close()
    return found


def one_of(pattern: str) -> str:
    """Return a subject that a line allows."""
    return ".".join({"*": "x", ">": "1.2"}.get(word, word) for word in pattern.split("."))


@pytest.mark.parametrize("role", ROLES)
async def test_each_line_taken_away_is_a_refusal_with_its_sentence(server: Secured, role: str) -> None:
    found = lines(role)
    assert await refused(server, role, [(verb, one_of(subject)) for verb, subject in found]) == {}
    for number, (verb, pattern) in enumerate(found):
        subject = one_of(pattern)
        said = await refused(server, f"{role}_{number}", [(verb, subject)])
        assert set(said) == {(verb, subject)}, f"without {verb} {pattern} nothing is refused"
        assert said[verb, subject].startswith(f"the server does not allow this user to {verb} to {subject}: ")


@pytest.mark.parametrize("role", ROLES)
async def test_each_act_of_every_other_role_is_refused_or_in_the_page(server: Secured, role: str) -> None:
    through = {right[:2] for right in let_through(role)}
    inbox = inbox_of("somebody")
    acts = {
        (right.verb, example(right.subject, inbox, queue)): (right, queue)
        for queue in ("mail", "bank")
        for part in PARTS.values()
        for right in part.rights
    }
    told = await refused(server, role, list(acts))
    for tried, (right, queue) in acts.items():
        if is_own(role, right, queue):
            assert tried not in told, tried
        else:
            assert tried in told or right[:2] in through, tried
    for right in let_through(role):
        assert (right.verb, example(right.subject, inbox)) not in told, right


def is_own(role: str, right: Right, queue: str) -> bool:
    """Return whether it is an act of this role: of its parts, in its queue, and nobody else's inbox or lease."""
    if (
        right.subject.startswith("_INBOX.")
        or "WORKERS.<" in right.subject
        or "<subscription>" in right.subject
    ):
        return False
    queues = ("mail",) if role in BOUND else ()
    return any(
        right[:2] in {each[:2] for each in PARTS[part].rights}
        and ("<queue" not in right.subject or not bound or queue in bound)
        for part, bound in parts_of(ROLES[role], queues)
    )

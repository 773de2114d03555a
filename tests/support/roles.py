"""Users of a NATS server, each with the rights that `jobledger permissions` prints for its role."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from jobledger.cli.main import run as run_command


class Printed(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def ask(*words: str) -> Printed:
    """Run `jobledger permissions` with some words."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = run_command(("permissions", *words))
    return Printed(code, out.getvalue(), err.getvalue())


def printed(*words: str) -> str:
    """Return what it prints."""
    found = ask(*words)
    assert found.code == 0, found.err
    return found.out


def user(name: str, rights: str) -> str:
    """Return a user of a nats.conf; its password is "p"."""
    return f"{{ user: {name}, password: p, {rights} }}"


def authorization(*users: str) -> str:
    """Return the block of a nats.conf that knows these users, and `all`, who may do everything."""
    return f"authorization {{ users: [ {', '.join(('{ user: all, password: p }', *users))} ] }}\n"

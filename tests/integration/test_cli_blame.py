"""The death of an embedded server is told as that, whichever error of a command was its first sign."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import anyio
import pytest

from jobledger.cli.embedded import blamed, embedded
from jobledger.cli.errors import ServerEndedError, UsageError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "sign",
    [
        OSError("connection reset"),
        UsageError("of ours"),
        asyncio.CancelledError(),
        BaseExceptionGroup("several", [asyncio.CancelledError(), OSError("broken pipe")]),
    ],
    ids=["unforeseen", "ours", "a future was cancelled", "several"],
)
async def test_any_error_of_a_command_whose_server_died_is_told_as_its_death(
    tmp_path: Path, sign: BaseException
) -> None:
    async with embedded(tmp_path / "store", port=0, durability="process") as server:

        async def command() -> None:
            async with blamed(server):
                assert server.pid is not None
                os.kill(server.pid, signal.SIGKILL)
                raise sign

        with pytest.raises(ServerEndedError, match="killed by signal 9"):
            await command()


async def test_an_error_while_the_server_lives_stays_what_it_is(tmp_path: Path) -> None:
    async with embedded(tmp_path / "store", port=0, durability="process") as server:
        with pytest.raises(UsageError, match="of ours"):
            async with blamed(server):
                raise UsageError("of ours")


async def test_a_command_that_is_cancelled_is_cancelled_at_once(tmp_path: Path) -> None:
    async with embedded(tmp_path / "store", port=0, durability="process") as server:
        with anyio.CancelScope() as scope:
            async with blamed(server):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert server.alive

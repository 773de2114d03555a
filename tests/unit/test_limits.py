"""An async test that hangs ends."""

from __future__ import annotations

import anyio
import pytest
from tests.support.limits import limited

pytestmark = pytest.mark.anyio


async def test_what_hangs_is_ended() -> None:
    with pytest.raises(TimeoutError):
        await limited(anyio.sleep_forever, 0.01)()


async def test_what_ends_in_time_is_as_it_was() -> None:
    async def double(n: int, *, by: int) -> int:
        return n * by

    assert await limited(double, 60.0)(2, by=3) == 6


async def test_every_async_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    assert getattr(request.node.obj, "__wrapped__", None) is not None

"""Every code of what load balancers and Prometheus ask."""

from __future__ import annotations

from typing import Final

from tests.support.gateway import Asker


class Behind:
    """A process that is to get no requests."""

    async def why_not_ready(self) -> str:
        """Return why not."""
        return "the lists are 12 s behind"

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        """Return a metric."""
        return accept, b"up 1"


async def being_asked(asker: Asker) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        await asker.sees("GET", path, 200)
    asker.gateway.health = Behind()
    answer = await asker.sees("GET", "/readyz", "NOT_READY")
    assert answer.json()["detail"] == "the lists are 12 s behind"
    assert (await asker.sees("GET", "/metrics", 200, headers={"accept": "text/plain"})).text == "up 1"
    asker.gateway.health = None


CASES: Final = (being_asked,)

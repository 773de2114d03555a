"""A steady load whose every answer is kept: jobs are added by two Python clients and two gateways, and read elsewhere at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

import httpx

from jobledger.ledger import JobHandle, JobState, Ledger, Task
from jobledger.ledger.model.errors import JobNotFoundError, LedgerError

PYTHON_EACH_S: Final = 0.15
HTTP_EACH_S: Final = 0.35
_AGAIN_S: Final = 0.3
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_FAR_S: Final = 3600.0  #: a job that is cancelled before it is due

#: Makes the words of an enqueue of a number.
Kind = Callable[[int], tuple[Task[..., Any], tuple[Any, ...]]]


class Said(NamedTuple):
    """One answer."""

    to: str  #: "enqueue", "read", "cancel", "post", "get"
    job: str
    began: float  #: by the monotonic clock
    ended: float
    what: str  #: "" for a right answer, "older", or the error

    @property
    def is_error(self) -> bool:
        return bool(self.what) and self.what != "older"


class Load:
    """Goes on until it is stopped; `acknowledged` are the jobs that have to be in the ledger."""

    def __init__(self, clients: Sequence[Ledger], kinds: Sequence[Kind]) -> None:
        """`clients`: whoever did not add a job reads it, too."""
        self._clients = clients
        self._kinds = kinds
        self.said: list[Said] = []
        self.acknowledged: set[str] = set()
        self._stops = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, gateways: Sequence[httpx.AsyncClient] = ()) -> AsyncGenerator[None]:
        """Load for the length of the block; then what is under way ends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._each(PYTHON_EACH_S, self._by_python, group))
            if gateways:
                group.create_task(self._each(HTTP_EACH_S, lambda n: self._by_http(gateways, n), group))
            yield
            self._stops.set()

    def between(self, began: float, ended: float) -> Answers:
        """Return what was said to whoever asked in this time."""
        return Answers([each for each in self.said if began <= each.began < ended], began, ended)

    async def _each(
        self, seconds: float, do: Callable[[int], Coroutine[Any, Any, None]], group: asyncio.TaskGroup
    ) -> None:
        for number in itertools.count():
            if self._stops.is_set():
                return
            group.create_task(do(number))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stops.wait(), seconds)

    async def _ask(self, to: str, job: str, question: Awaitable[str]) -> Said:
        """Note an answer; `question` returns "" or what is wrong with it."""
        began = time.monotonic()
        try:
            what = await question
        except JobNotFoundError:
            what = "older"
        except LedgerError as error:
            what = f"{type(error).__name__}: {error}"
        except httpx.HTTPError as error:
            what = type(error).__name__
        self.said.append(Said(to, job, began, time.monotonic(), what))
        return self.said[-1]

    async def _until_acknowledged(self, to: str, job: str, ask: Callable[[], Awaitable[str]]) -> bool:
        """Ask until it is acknowledged, as an application does that must not lose a job; False: the load ended."""
        while (await self._ask(to, job, ask())).what:
            if self._stops.is_set():
                return False
            await asyncio.sleep(_AGAIN_S)
        self.acknowledged.add(job)
        return True

    async def _by_python(self, number: int) -> None:
        mine, other = self._clients[number % 2], self._clients[1 - number % 2]
        kind, arguments = self._kinds[number % len(self._kinds)](number)
        job = f"{kind.name.rpartition('.')[2]}-{number}"
        is_cancelled = number % 8 == 0
        options = kind.options(id=job, delay_s=_FAR_S if is_cancelled else None)
        handles: list[JobHandle[Any]] = []

        async def enqueue() -> str:
            handles.append(await mine.enqueue(options, *arguments))
            return ""

        async def read(client: Ledger) -> str:
            await client.job(handles[-1].id)
            return ""

        async def cancel() -> str:
            await handles[-1].cancel()
            return ""

        async def is_still_cancelled(client: Ledger) -> str:
            state = await client.handle_of(handles[-1].ref).state()
            return "" if state is JobState.CANCELLED else "older"

        if not await self._until_acknowledged("enqueue", job, enqueue):
            return
        for client in (mine, other):
            await self._ask("read", job, read(client))
        if is_cancelled and await self._until_acknowledged("cancel", job, cancel):
            for client in (mine, other):
                await self._ask("read", job, is_still_cancelled(client))

    async def _by_http(self, gateways: Sequence[httpx.AsyncClient], number: int) -> None:
        one, other = gateways[number % 2], gateways[1 - number % 2]
        job = f"http-{number}"

        async def post() -> str:
            return _refusal(
                await one.post("/v1/jobs", json={"task": "plain", "input": {"n": number}, "id": job})
            )

        async def get() -> str:
            answer = await other.get(f"/v1/jobs/plain/{job}")
            return "older" if answer.status_code == _NOT_FOUND else _refusal(answer)

        if await self._until_acknowledged("post", job, post):
            await self._ask("get", job, get())


def _refusal(answer: httpx.Response) -> str:
    if answer.is_success:
        return ""
    again = (
        ""
        if answer.status_code != _UNAVAILABLE or "retry-after" in answer.headers
        else ", without Retry-After"
    )
    return f"{answer.status_code}{again}"


class Answers(NamedTuple):
    """What was said in a time."""

    said: list[Said]
    began: float
    ended: float

    @property
    def older(self) -> int:
        """How many answers were older than what was acknowledged before them."""
        return sum(each.what == "older" for each in self.said)

    def errors(self, *to: str) -> Counter[str]:
        """How often what was said instead of an answer to these questions."""
        return Counter(each.what for each in self.said if each.is_error and each.to in to)

    def kinds(self) -> Counter[str]:
        """How often what was said instead of an answer, numbers and names of jobs left out."""
        return Counter(
            f"{each.to}: {re.sub(r'[0-9][0-9.]*', 'N', each.what.replace(each.job, 'JOB'))}"
            for each in self.said
            if each.is_error
        )

    def slowest_s(self, *to: str) -> float:
        return max((each.ended - each.began for each in self.said if each.to in to), default=0.0)

    def pause_s(self, *to: str) -> float:
        """Return the longest time in which no such question was answered rightly."""
        return longest(sorted(each.ended for each in self.said if each.to in to and not each.what), self)


def longest(moments: Iterable[float], within: Answers) -> float:
    """Return the longest time between two moments, within a time."""
    inside = [within.began, *(each for each in moments if within.began <= each < within.ended), within.ended]
    return max(later - earlier for earlier, later in itertools.pairwise(inside))

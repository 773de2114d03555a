"""Hints: core NATS messages that say "look now". They carry no truth, and nothing depends on their arrival."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Generator

from jobledger.ledger.model.subjects import JobRef, Names, is_token
from jobledger.ledger.nats.connection import Connection, ConnectionLostError


class Hints:
    """Hints between processes, such as that a job has ended, for those that watch it in this process."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self.inbox = secrets.token_hex(8)  #: named in `queued` events, so that workers know the receiver
        self._watching: dict[str, set[asyncio.Event]] = {}

    async def open(self) -> None:
        """Subscribe to this process's hints."""
        await self._connection.listen(self._names.ended_hint(self.inbox), self._on_hint)

    def _on_hint(self, _subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
        for event in self._watching.get(data.decode(errors="replace"), ()):
            event.set()

    @contextlib.contextmanager
    def watch(self, ref: JobRef) -> Generator[asyncio.Event, None, None]:
        """Yield an event that is set when a hint about the job arrives."""
        key = f"{ref.queue}.{ref.job_id}"
        event = asyncio.Event()
        watchers = self._watching.setdefault(key, set())
        watchers.add(event)
        try:
            yield event
        finally:
            watchers.discard(event)
            if not watchers:
                self._watching.pop(key, None)

    async def listen_cancels(self, queue: str, on_cancel: Callable[[JobRef], None]) -> None:
        """Call `on_cancel` for every hint that a running job of the queue is to end."""
        await self._listen_jobs(self._names.cancel_hint(queue), queue, on_cancel)

    async def listen_resumes(self, queue: str, on_news: Callable[[JobRef], None]) -> None:
        """Call `on_news` for every hint that a run of the queue has news: a signal, or children that ended."""
        await self._listen_jobs(self._names.resume_hint(queue), queue, on_news)

    async def _listen_jobs(self, subject: str, queue: str, on_job: Callable[[JobRef], None]) -> None:
        def on_hint(subject: bytes, _reply: bytes, _data: bytes, _headers: bytes) -> None:
            on_job(JobRef(queue=queue, job_id=subject.rpartition(b".")[2].decode(errors="replace")))

        await self._connection.listen(subject, on_hint)

    def tell_resume(self, ref: JobRef) -> None:
        """Tell the workers of a run's queue that it has news."""
        self._send(self._names.resume_hint(ref.queue, ref.job_id), b"")

    def tell_cancel(self, ref: JobRef) -> None:
        """Tell the workers of a job's queue that a cancel request for it is in the ledger."""
        self._send(self._names.cancel_hint(ref.queue, ref.job_id), b"")

    async def listen_queue(self, queue: str, on_change: Callable[[], None]) -> None:
        """Call `on_change` for every hint that the queue was paused or resumed."""

        def on_hint(_subject: bytes, _reply: bytes, _data: bytes, _headers: bytes) -> None:
            on_change()

        await self._connection.listen(self._names.queue_hint(queue), on_hint)

    def tell_queue(self, queue: str) -> None:
        """Tell the workers of a queue that it was paused or resumed."""
        self._send(self._names.queue_hint(queue), b"")

    @contextlib.asynccontextmanager
    async def watch_progress(
        self, ref: JobRef, on_progress: Callable[[bytes], None]
    ) -> AsyncGenerator[None, None]:
        """Call `on_progress` with each report (JSON: done, total, note) of a job for the length of the block."""
        subscription = await self._connection.listen(
            self._names.progress_hint(ref), lambda _subject, _reply, data, _headers: on_progress(data)
        )
        try:
            yield
        finally:
            await self._connection.unlisten(subscription)

    def tell_progress(self, ref: JobRef, report: bytes) -> None:
        """Send a report to the processes that watch the job at this moment."""
        self._send(self._names.progress_hint(ref), report)

    def tell(self, inbox: str, ref: JobRef) -> None:
        """Tell another process that a job has ended; lost without a trace when nobody listens.

        The inbox comes from a stored event, so it is checked: an invalid one would end our connection.
        """
        if not is_token(inbox):
            return
        self._send(self._names.ended_hint(inbox), f"{ref.queue}.{ref.job_id}".encode())

    def _send(self, subject: str, data: bytes) -> None:
        with contextlib.suppress(ConnectionLostError):
            self._connection.send(subject, "", b"", data)

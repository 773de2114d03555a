"""The place where a gateway does verbs: with the caller's rights, on the version that the caller has seen."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

from jobledger.admin.errors import JobNotHeldError
from jobledger.admin.verbs.kit import Place
from jobledger.gateway.api.one_job import Asker, missing_job, read_job
from jobledger.gateway.hooks.references import require_secrets
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import InvalidInputError, JobNotFoundError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import JobRef, check_token

# `If-Match`: an act is stored only if the job has not changed since the caller saw it.


def acting_on(ledger: Ledger, ref: JobRef, sequence: int | None) -> Ledger:
    """Return a client that appends to this job only right after the event at `sequence`; None: after any event.

    Each append names the last event of the chain that it was decided on; that sequence is compared.
    """
    if sequence is None:
        return ledger
    own = copy.copy(ledger)
    own.log = cast("Log", _PinnedLog(ledger.log, ledger.names.chain(ref), sequence))
    return own


def require_at(wanted: int, sequence: int) -> None:
    """Refuse a job that is at another sequence than the one wanted. Raises: ProblemError (PRECONDITION_FAILED)."""
    if sequence != wanted:
        raise ProblemError(
            "PRECONDITION_FAILED",
            f"the job is at sequence {sequence:,} by now, not at {wanted:,}: look at it again, then decide again",
        )


class _PinnedLog:
    """A log that refuses an append to one chain, unless the append expects the wanted sequence.

    Everything else is done by the log behind it.
    """

    def __init__(self, log: Log, chain: str, sequence: int) -> None:
        self._log = log
        self._chain = chain
        self._sequence = sequence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, entries: Sequence[Entry]) -> int:
        """Append as the log does. Raises: ProblemError (PRECONDITION_FAILED)."""
        self._compare(entries)
        return await self._log.append(entries)

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Submit as the log does. Raises: ProblemError (PRECONDITION_FAILED)."""
        self._compare(entries)
        return self._log.submit(entries)

    def begin(self, entries: Sequence[Entry], answered: Callable[[int | Exception], None]) -> None:
        """Begin as the log does. Raises: ProblemError (PRECONDITION_FAILED)."""
        self._compare(entries)
        self._log.begin(entries, answered)

    def _compare(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.chain == self._chain and entry.expected is not None:
                require_at(self._sequence, entry.expected)


class GatewayPlace(Place):
    """One request to a gateway, as verbs see it."""

    def __init__(self, asker: Asker, *, trace: str = "", if_match: int | None = None) -> None:
        """`if_match`: sequence of the version that the act is decided on; None for any."""
        super().__init__(asker.gateway.ledger, asker.gateway.rows, asker.principal, trace)
        self._asker = asker
        self._if_match = if_match

    def require_secrets(self, references: Iterable[str]) -> None:
        """Refuse secrets outside of the gateway's own places, unless the caller may `admin` everywhere. Raises: ProblemError."""
        require_secrets(self.principal, self._asker.gateway.secrets, references)

    async def act_on_job(
        self,
        job_id: str,
        queue: str | None,
        permission: Permission,
        act: Callable[[Ledger, JobRef], Awaitable[Job]],
    ) -> Job:
        """Act on the job of an address, whose events are stored only where `If-Match` allows it.

        Raises: AccessDeniedError; JobNotFoundError, also if the caller may not see the job; ProblemError for one that
            is archived, and if `If-Match` does not hold; the errors of `act`.
        """
        if queue is None:
            raise InvalidInputError("name the queue of the job: an address has both")
        self.principal.require(permission, check_token("queue", queue))
        ref = JobRef(queue=queue, job_id=check_token("job id", job_id))
        if self.principal.scope.tasks:
            await read_job(self._asker, queue, job_id, permission=permission)
        if self._if_match is not None:  # before the act does anything; each append checks it again
            newest = await self.ledger.log.newest_sequence(self.ledger.names.chain(ref))
            if newest:
                require_at(self._if_match, newest)
        try:
            return await act(acting_on(self.ledger, ref, self._if_match), ref)
        except (JobNotFoundError, JobNotHeldError):
            raise await missing_job(self._asker, queue, job_id) from None

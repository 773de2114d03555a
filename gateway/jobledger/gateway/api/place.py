"""The place where a gateway does verbs: for a caller, within their rights, on the version that they have seen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from jobledger.admin.errors import JobNotHeldError
from jobledger.admin.verbs.kit import Place
from jobledger.gateway.api.one_job import Asker, missing_job, read_job
from jobledger.gateway.conditions import acting_on, require_at
from jobledger.gateway.hooks.references import require_secrets
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import InvalidInputError, JobNotFoundError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import JobRef, check_token


class GatewayPlace(Place):
    """One request to a gateway, as verbs see it."""

    def __init__(self, asker: Asker, *, trace: str = "", if_match: int | None = None) -> None:
        """`if_match`: the sequence that the act was decided on, None for any."""
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

        Raises: AccessDeniedError; JobNotFoundError, also for who may not see the job; ProblemError for one that is
            archived, and where `If-Match` does not hold; what `act` raises.
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

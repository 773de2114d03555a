"""Bodies of webhooks: kept in an object store by their sha256, each for as long as its route says."""

from __future__ import annotations

from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.errors import PayloadMissingError, ServerUnreachableError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.objects import ObjectBucket, ObjectDamagedError, ObjectGoneError
from jobledger.ledger.nats.streams import bodies_specification, ensure_stream


class Bodies:
    """The bucket BODIES. It is made by whoever keeps the first one, and forgets the oldest where it is full."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        names: Names,
        clock: Clock,
        *,
        ledger_bytes_max: int,
        replicas: int,
    ) -> None:
        self._objects = ObjectBucket(connection, names.bodies_bucket, clock)
        self._inbox = inbox
        self._spec = bodies_specification(names, ledger_bytes_max=ledger_bytes_max, replicas=replicas)
        self._is_made = False

    async def keep(self, body: bytes, life_s: float) -> None:
        """Keep a body under its sha256 for `life_s` seconds. Raises: LedgerFullError, ServerUnreachableError."""
        if not self._is_made:
            await ensure_stream(self._inbox, self._spec)
            self._is_made = True
        try:
            # A hundredth longer, so that the same body soon after needs no further copy.
            await self._objects.store_once(
                digest(body), body, what="body of a webhook", stays_s=life_s, life_s=life_s * 1.01
            )
        except ServerUnreachableError:
            self._is_made = False  # somebody may have deleted the bucket: the next try makes it again
            raise

    async def body(self, sha256: str) -> bytes:
        """Return a body. Raises: PayloadMissingError once it is gone, ServerUnreachableError."""
        what = f"the body {sha256[:12]}..."
        try:
            found = await self._objects.read(sha256, what=what)
        except ObjectGoneError as error:
            message = f"{what} is gone: bodies are kept for the days of their route, the oldest go where there is no room"
            raise PayloadMissingError(message, state="gone") from error
        except ObjectDamagedError as error:
            raise _damaged(what) from error
        if digest(found) != sha256:
            raise _damaged(what)
        return found


def _damaged(what: str) -> PayloadMissingError:
    return PayloadMissingError(
        f"{what} differs from what was kept: its sha256 is another one", state="differs"
    )

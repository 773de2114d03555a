"""What a task may return to say more than "done": values, not exceptions.

An exception always means that this attempt failed.
"""

from __future__ import annotations

import msgspec

from jobledger.ledger.errors import ConfigurationError


class Cancel(msgspec.Struct, frozen=True):
    """End the job as cancelled: there is nothing (any more) to do."""

    reason: str = ""


class Retry(msgspec.Struct, frozen=True):
    """End this attempt as failed without an exception, and let the job be tried again while attempts are left."""

    reason: str = "the task asked to be retried"

    def __post_init__(self) -> None:
        """Check that a reason is given, since it is what the trail will show."""
        if not self.reason:
            message = "Retry needs a reason: it is what `jobledger jobs show` tells the next person"
            raise ConfigurationError(message)

"""What can go wrong with subscriptions.

NotFoundError
└── SubscriptionNotFoundError
RefusedError
└── SubscriptionMismatchError
"""

from __future__ import annotations

from jobledger.ledger.model.errors import NotFoundError, RefusedError


class SubscriptionNotFoundError(NotFoundError):
    """There is no durable subscription of that name, or it was deleted while it was read.

    Its acknowledgements are lost with it; it is not made again automatically.
    """

    def __init__(self, name: str, message: str = "") -> None:
        self.name = name
        super().__init__(
            message
            or f"there is no subscription {name!r}; `jobledger events subscriptions list` shows those that are"
        )


class SubscriptionMismatchError(RefusedError):
    """A durable subscription was made for other events, or with another ack wait; it was left as it is."""

    def __init__(self, name: str, differences: list[str], acknowledged_sequence: int) -> None:
        self.name = name
        self.differences = differences  #: "types is completed, not failed", one each
        self.acknowledged_sequence = acknowledged_sequence
        super().__init__(
            f"subscription {name} was made for something else ({'; '.join(differences)}): use another name, or "
            f"`jobledger events subscriptions remove {name}` and begin it again, where it stopped with "
            f"from_sequence={acknowledged_sequence + 1}",
        )

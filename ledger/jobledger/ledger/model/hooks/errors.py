"""What can go wrong with routes, webhooks and watches.

NotFoundError
├── RouteNotFoundError
├── DeliveryNotFoundError
├── WebhookNotFoundError
└── WatchNotFoundError
InvalidError
└── SecretUnavailableError
"""

from __future__ import annotations

from jobledger.ledger.model.errors import InvalidError, NotFoundError


class WebhookNotFoundError(NotFoundError):
    """There is no webhook of that name, or it was removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no webhook {name!r}; `jobledger webhooks list` shows those that are")


class WatchNotFoundError(NotFoundError):
    """There is no watch of that name, or it was removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no watch {name!r}; `jobledger watches list` shows those that are")


class SecretUnavailableError(InvalidError):
    """The secret that a reference names is missing or cannot be read; the sentence never holds the secret."""


class RouteNotFoundError(NotFoundError):
    """There is no route of that name, or it was removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no route {name!r}; `jobledger routes list` shows those that are")


class DeliveryNotFoundError(NotFoundError):
    """The route has no delivery of that name, or it is in an archive."""

    def __init__(self, route: str, name: str) -> None:
        self.route = route
        self.name = name
        super().__init__(
            f"route {route} has no delivery {name!r}; `jobledger routes deliveries {route}` shows those that it has"
        )

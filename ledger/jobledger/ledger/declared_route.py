"""Routes that code declares: `Route`."""

from __future__ import annotations

from jobledger.ledger.model.hooks.route import RouteDefinition, check_definition
from jobledger.ledger.model.subjects import check_token


class Route:
    """A route that code declares.

    Instantiate it at the top of a module: a worker or gateway that loads the module declares the route. A person's
    definition stays.
    """

    def __init__(self, name: str, definition: RouteDefinition) -> None:
        """`name`: the last word of its address `/in/<name>`. Raises: InvalidInputError, InvalidTokenError."""
        check_definition(definition)
        self.name = check_token("route", name)
        self.definition = definition

    def __repr__(self) -> str:
        """Show its name."""
        return f"<route {self.name}>"

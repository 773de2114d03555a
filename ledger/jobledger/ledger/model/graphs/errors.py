"""What can go wrong with stored graphs."""

from __future__ import annotations

from jobledger.ledger.model.errors import NotFoundError


class GraphNotFoundError(NotFoundError):
    """There is no stored graph of that name, it was removed, or it never had that version."""

    def __init__(self, name: str, version: int = 0) -> None:
        self.name = name
        self.version = version
        what = f"no version {version} of graph {name!r}" if version else f"no stored graph {name!r}"
        look = f"`jobledger graphs show {name}`" if version else "`jobledger graphs list`"
        super().__init__(f"there is {what}; {look} shows those that are")

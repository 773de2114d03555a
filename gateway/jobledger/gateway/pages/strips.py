"""Strips under the sliders, kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from markupsafe import Markup

_STRIP_FRESH_S: Final = 5.0
_STRIPS_MAX: Final = 32


class Strips:
    """The strips under the sliders: each is made again after a while, since it covers the whole life of the ledger."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, ...], tuple[float, Markup]] = OrderedDict()

    def known(self, scope: tuple[str, ...], now: float, step_s: int) -> Markup | None:
        """Return the strip of some queues, None where it has to be made again."""
        at, made = self._made.get(scope, (0.0, None))
        return made if now - at < max(_STRIP_FRESH_S, step_s / 20) else None

    def keep(self, scope: tuple[str, ...], now: float, strip: Markup) -> None:
        """Keep a strip that was made."""
        self._made[scope] = (now, strip)
        while len(self._made) > _STRIPS_MAX:
            self._made.popitem(last=False)

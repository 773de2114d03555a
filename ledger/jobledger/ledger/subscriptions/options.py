"""What a durable subscription can be told, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError
from jobledger.ledger.subscriptions.consumers import UNACKNOWLEDGED_MAX
from jobledger.ledger.subscriptions.filter import (
    EventFilter,
    Selection,
    Start,
    check_flag,
    chosen_filter,
    chosen_start,
    shown,
)

IN_FLIGHT_MAX_DEFAULT: Final = 16
_ACK_WAIT_S_MAX: Final = 3600.0
_HELD_S_DEFAULT: Final = 3600.0


class SubscriptionOptions(Selection, total=False):
    """How a durable subscription is made where it does not exist, and how this process takes part in it."""

    max_in_flight: int  #: events this process may have that are not settled; 16 by default
    ack_wait_s: float | None  #: how long after a crash its events are handed out again; 30 by default
    held_s_max: float  #: an event that is not settled within so long is handed out again; an hour by default
    create: bool  #: make it where it does not exist (the default), or refuse


class SubscriptionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part in a subscription, checked; see `SubscriptionOptions`."""

    filter: EventFilter
    start: Start
    follow: bool = True
    max_in_flight: int = IN_FLIGHT_MAX_DEFAULT
    ack_wait_s: float | None = None  #: None: as it is, 30 where it is made
    held_s_max: float = _HELD_S_DEFAULT
    create: bool = True

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises: ConfigurationError.
        """
        check_flag("follow", self.follow)
        check_flag("create", self.create)
        for name in ("max_in_flight", "ack_wait_s", "held_s_max"):
            _check_number(name, getattr(self, name), is_whole=name == "max_in_flight")
        if not 1 <= self.max_in_flight <= UNACKNOWLEDGED_MAX:
            raise ConfigurationError(
                f"max_in_flight must be 1 to {UNACKNOWLEDGED_MAX}, got {shown(self.max_in_flight)}"
            )
        if self.ack_wait_s is not None and not 1 <= self.ack_wait_s <= _ACK_WAIT_S_MAX:
            raise ConfigurationError(f"ack_wait_s must be 1 to 3600, got {shown(self.ack_wait_s)}")
        if not self.held_s_max > 0:
            raise ConfigurationError(f"held_s_max must be above 0, got {shown(self.held_s_max)}")


def _check_number(name: str, value: object, *, is_whole: bool) -> None:
    if value is None and name == "ack_wait_s":
        return
    wanted = int if is_whole else int | float
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ConfigurationError(f"{name} must be a {'whole ' if is_whole else ''}number, got {shown(value)}")


def configured(options: Mapping[str, Any]) -> SubscriptionConfig:
    """Check the options of one subscription, as `SubscriptionOptions` has them.

    Raises: InvalidError.
    """
    choice = {name: options[name] for name in ("types", "queue", "task", "job") if name in options}
    begin = {name: options[name] for name in ("from_sequence", "since", "live") if name in options}
    others = {name: value for name, value in options.items() if name not in {*choice, *begin}}
    try:
        return SubscriptionConfig(filter=chosen_filter(**choice), start=chosen_start(**begin), **others)
    except TypeError as error:
        raise InvalidInputError(f"the options of a subscription are not right: {error}") from error

"""`Unique`: which jobs of a task count as the same, for how long, and what becomes of an enqueue that meets one."""

from __future__ import annotations

from typing import Any, Final, Literal, cast, get_args

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.outcome import check_delay

OnConflict = Literal["return", "reject", "replace"]
UntilState = Literal["started", "ended"]


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """At most one job of its kind: of the task, for the tenant, with the same values of the chosen arguments."""

    args: tuple[str, ...] | None = None  #: the arguments that count, by name; None: all; (): none of them
    #: One job in each period of this many seconds. Without `sliding` one in each queue: the period gives the job its id.
    for_s: float | None = None
    #: A period begins when a job is enqueued; False: one period follows the other, from 1970 on.
    sliding: bool = False
    until: UntilState | None = None  #: one job until it is started or has ended; None is "ended"
    on_conflict: OnConflict = "return"  #: that job, raise UniqueKeyTakenError, or replace it while it waits

    def __post_init__(self) -> None:
        """Check every field.

        Raises: ConfigurationError.
        """
        _check_names(self.args)
        _check_word("until", self.until, (None, *get_args(UntilState)))
        _check_word("on_conflict", self.on_conflict, get_args(OnConflict))
        if self.for_s is None:
            if self.sliding:
                raise ConfigurationError(
                    "Unique(sliding=True) needs for_s, the length of the period in seconds"
                )
            return
        if self.until is not None:
            raise ConfigurationError("give Unique for_s or until, not both")
        check_delay("Unique's for_s", self.for_s)
        if self.for_s < PERIOD_S_MIN:
            raise ConfigurationError(
                f"Unique's for_s must be at least {PERIOD_S_MIN:g} s, got {self.for_s!r}"
            )
        if self.is_by_id and self.on_conflict == "replace":
            message = (
                "Unique(for_s=...) cannot replace a job, because the period gives it its id: "
                "add sliding=True, or use until"
            )
            raise ConfigurationError(message)

    @property
    def is_by_id(self) -> bool:
        """Whether the id of the job says it all: one job in each fixed period."""
        return self.for_s is not None and not self.sliding


#: Clocks of machines differ by less than that, as a rule.
PERIOD_S_MIN: Final = 1.0


def _check_names(names: Any) -> None:
    """Raise ConfigurationError for what is no tuple of different names."""
    if names is None:
        return
    fits = isinstance(names, tuple) and all(
        isinstance(each, str) and each for each in cast("tuple[object, ...]", names)
    )
    if not fits or len(set(cast("tuple[str, ...]", names))) < len(cast("tuple[str, ...]", names)):
        raise ConfigurationError(
            f'Unique\'s args must be a tuple of names, such as args=("user",), got {names!r}'
        )


def _check_word(field: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        able = " or ".join(repr(each) for each in known if each is not None)
        raise ConfigurationError(f"Unique's {field} must be {able}, got {value!r}")


def check_debounce(debounce_s: object, max_wait_s: object, unique: Unique, *, is_timed: bool) -> None:
    """Check the options of a debounced job.

    `is_timed`: it is given a time besides. Raises: ConfigurationError.
    """
    if debounce_s is None:
        if max_wait_s is not None:
            raise ConfigurationError("max_wait_s needs debounce_s, whose waiting it bounds")
        return
    check_delay("debounce_s", debounce_s)
    if is_timed:
        raise ConfigurationError("give debounce_s, or delay_s or run_at, not both")
    if max_wait_s is not None:
        check_delay("max_wait_s", max_wait_s)
        if cast("float", max_wait_s) < cast("float", debounce_s):
            raise ConfigurationError(
                f"max_wait_s must be at least debounce_s ({debounce_s:g}), got {max_wait_s!r}"
            )
    if (unique.for_s, unique.until, unique.on_conflict) != (None, None, "return"):
        message = (
            "a debounced job holds its key until it is due, and a further call moves it: "
            "give Unique nothing but args beside debounce_s"
        )
        raise ConfigurationError(message)

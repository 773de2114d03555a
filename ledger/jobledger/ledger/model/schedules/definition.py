"""The definition of a schedule: its ticks, the job of each tick, and the treatment of missed ticks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal, get_args

import msgspec

from jobledger.ledger.model.envelope import Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.inputs import LIMITS_MAX, check_whole
from jobledger.ledger.model.limits.definition import Mode
from jobledger.ledger.model.limits.names import joined
from jobledger.ledger.model.schedules.ticks import Spec, check_spec
from jobledger.ledger.model.subjects import check_token

#: What happens at a tick while the job of the newest tick has not ended. `skip`: no job is made. `allow`: a job is
#: made. With the others a job is made and waits, by a limit of one slot: `buffer_all`: in line; `buffer_one`: in place
#: of the job that waits already; `cancel_other`: the same, and the running job is asked to end.
Overlap = Literal["skip", "allow", "buffer_one", "buffer_all", "cancel_other"]
#: The overlaps that work by a limit, and the mode of the limit.
OVERLAP_MODES: Final[Mapping[str, Mode]] = {
    "buffer_one": "newest",
    "buffer_all": "queue",
    "cancel_other": "replace",
}
#: What happens to ticks that are more than `LATE` late. `latest`: one job is made, for the newest one. `none`: no job
#: is made. `all`: a job is made for each tick of the last `window_s` seconds.
Catchup = Literal["latest", "none", "all"]
#: The author of a declaration.
Source = Literal["code", "operator"]

#: A tick that is later than this was missed.
LATE: Final = timedelta(seconds=60)
WINDOW_S_DEFAULT: Final = 86_400
SPAN_S_MAX: Final = 366 * 86_400
_CODE_VERSION_MAX: Final = 64


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a schedule does; each of its events has all of it. Released fields never change type or meaning."""

    spec: Spec  #: its ticks
    task: str  #: the task of its jobs
    queue: str  #: the queue of its jobs
    order: Order = Order()  #: other fields of its jobs; `tick` is set for each
    overlap: Overlap = "skip"  #: what happens at a tick while the job of the newest tick has not ended
    catchup: Catchup = "latest"  #: what happens to missed ticks
    window_s: Whole = WINDOW_S_DEFAULT  #: seconds; with the catch-up `all`: older ticks are not caught up
    jitter_s: Whole = 0  #: seconds; a tick is due at most this long after its planned moment
    ends_at: Moment | None = None  #: the last moment at which it may tick; None: it never ends
    hooks: bool = False  #: whether a tick's job calls the hooks of its code, and then makes the job proper
    source: Source = "operator"  #: author of the declaration
    code_version: str = (
        ""  #: version of the application whose code declared it; "" if an operator declared or reset it
    )


def overlap_limit(schedule: str) -> str:
    """Return the limit that keeps jobs of a schedule's ticks apart."""
    return joined("schedule", schedule)


def check_definition(definition: Definition) -> None:
    """Refuse a definition that cannot tick, or could not be recorded.

    Raises: InvalidInputError, InvalidTokenError.
    """
    check_spec(definition.spec)
    check_token("task name", definition.task)
    check_token("queue", definition.queue)
    for field, words in (("overlap", Overlap), ("catchup", Catchup), ("source", Source)):
        value = getattr(definition, field)
        if value not in get_args(words):
            raise InvalidInputError(f"{field} must be {' or '.join(get_args(words))}, got {value!r}")
    if definition.overlap in OVERLAP_MODES and len(definition.order.limits) >= LIMITS_MAX:
        raise InvalidInputError(
            f"overlap {definition.overlap} is a limit of its own: leave one of the {LIMITS_MAX} limits out"
        )
    for field in ("window_s", "jitter_s"):
        value = getattr(definition, field)
        check_whole(field, value)
        if value > SPAN_S_MAX:
            raise InvalidInputError(f"{field} is {value:,} seconds: give at most a year, {SPAN_S_MAX:,}")
    if definition.source == "code" and not definition.code_version:
        raise InvalidInputError("a schedule that code declares says the code's version: give code_version")
    if len(definition.code_version) > _CODE_VERSION_MAX:
        raise InvalidInputError(f"code_version is longer than {_CODE_VERSION_MAX} characters: give less")

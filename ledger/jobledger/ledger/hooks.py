"""Hooks: functions that are told what became of an attempt. They watch; nothing they do changes an outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.events import ErrorInfo

HookKind = Literal["start", "success", "failure", "dead_letter", "stall", "lost"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is told. It holds no input and no result: read them from the job where they are needed."""

    kind: HookKind
    job_id: str
    queue: str
    task: str
    attempt: int  #: 0 where the job never ran; of a lost attempt that one
    worker: str  #: of a lost attempt the one that died
    error: ErrorInfo | None = None  #: of a failure or dead letter
    reason: str = ""  #: of a dead letter or a stall
    will_retry: bool = False  #: of a failure or a lost attempt: another attempt follows


Hook = Callable[[Notice], Awaitable[None] | None]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions to call at the turning points of an attempt, async or not.

    `@task(hooks=Hooks(...))` is for one task; a `Hooks` object at the top of a module given to a worker is
    for all its tasks. They run in the worker, once the fact they tell is in the ledger, at most once, and
    lost if the worker dies: what must not be missed belongs to an event subscriber. One that fails or takes
    too long is reported in the log, and that is all.
    """

    on_start: Hook | None = None
    on_success: Hook | None = None
    on_failure: Hook | None = None
    on_dead_letter: Hook | None = None
    on_stall: Hook | None = (
        None  #: the attempt blocked the loop of its worker, which lives, or gave no sign of life
    )
    #: The worker that ran an attempt died: called by the worker that takes over, with that attempt and its worker.
    on_lost: Hook | None = None

    def __post_init__(self) -> None:
        """Check that each is a function.

        Raises: ConfigurationError.
        """
        for name in self.__struct_fields__:
            hook: object = getattr(self, name)
            if hook is not None and not callable(hook):
                raise ConfigurationError(f"hook {name} must be a function, got {hook!r}")

    def get(self, kind: HookKind) -> Hook | None:
        """Return the function for one kind of notice."""
        hook: Hook | None = getattr(self, f"on_{kind}")
        return hook

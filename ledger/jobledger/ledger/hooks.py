"""Hooks: functions that are called with the outcome of an attempt. They only watch, and cannot change an outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.events import ErrorInfo

HookKind = Literal["start", "success", "failure", "dead_letter", "stall", "lost"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of a hook. It holds no input and no result: read these from the job if needed."""

    kind: HookKind
    job_id: str
    queue: str
    task: str
    attempt: int  #: number of the attempt, also of a lost one; 0: the job never ran
    worker: str  #: the worker; for a lost attempt the one that died
    error: ErrorInfo | None = None  #: error of a failure or dead letter
    reason: str = ""  #: reason of a dead letter or a stall
    will_retry: bool = False  #: after a failure or a lost attempt: another attempt follows


Hook = Callable[[Notice], Awaitable[None] | None]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions to call at the turning points of an attempt, async or not.

    `@task(hooks=Hooks(...))` is for one task; a `Hooks` object at the top of a module given to a worker is
    for all its tasks. They run in the worker after their event is in the ledger, at most once, and not at all if the
    worker dies: use a subscription to events for calls that must not be missed. A hook that fails or takes too long is
    only reported in the log.
    """

    on_start: Hook | None = None
    on_success: Hook | None = None
    on_failure: Hook | None = None
    on_dead_letter: Hook | None = None
    on_stall: Hook | None = (
        None  #: called if the attempt blocked the loop of its worker, which is alive, or gave no sign of life
    )
    #: Called if the worker of an attempt died, by the worker that takes over, with that attempt and the dead worker.
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

"""Schedules that code declares: `Schedule`, and the hooks that one may have."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError
from jobledger.ledger.model.inputs import keep_utc
from jobledger.ledger.model.schedules.definition import (
    WINDOW_S_DEFAULT,
    Catchup,
    Definition,
    Overlap,
    check_definition,
)
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.model.subjects import check_token

if TYPE_CHECKING:
    from jobledger.ledger.handle import JobHandle
    from jobledger.ledger.options import Options

_NAME_MAX_WITH_HOOKS: Final = 55
_FINGERPRINT_CHARACTERS: Final = 16


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The tick that a schedule's hooks get."""

    schedule: str
    at: datetime  #: the planned moment, UTC
    job_id: str  #: id of the job that is made for the tick


class Skip(msgspec.Struct, frozen=True):
    """A value that `before` returns, so that no job is made for a tick."""

    reason: str = ""


_Answer = Mapping[str, Any] | Skip | None
Before = Callable[[Tick], _Answer | Awaitable[_Answer]]
After = Callable[[Tick, "JobHandle[Any]"], Awaitable[None] | None]


class AnyTask(Protocol):
    """A task, with options or without."""

    @property
    def unpacked(self) -> tuple[Any, Options]:
        """The task, and the options of its jobs."""
        ...


def check_options(schedule: str, options: Options) -> None:
    """Refuse options that a schedule's task cannot have, because each tick decides them. Raises: ConfigurationError."""
    if options.id is not None or options.run_at is not None or options.delay_s is not None or options.by:
        raise ConfigurationError(
            f"schedule {schedule}: its task has an id, a run_at, a delay_s or a by, which every tick decides: leave it out"
        )


class Schedule:
    """A schedule that code declares: the times at which jobs of a task are made.

    At the top of a module that a worker loads, or as `@task(schedule=Schedule(cron=...))`, which gives it the task and,
    without a name of its own, the task's name. A worker declares it at its start, if it serves the queue of its jobs.
    """

    def __init__(
        self,
        name: str = "",
        *,
        task: AnyTask | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the field's word
        cron: str = "",
        every_s: int = 0,
        at: datetime | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catchup: Catchup = "latest",
        window_s: int = WINDOW_S_DEFAULT,
        jitter_s: int = 0,
        ends_at: datetime | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> None:
        """Exactly one of `cron`, `every_s` and `at` sets the ticks; for the others see `Definition`.

        `task`: the task to run; its options (`task.options(queue=..., limits=...)`) are those of every job.
        `input`: the keyword arguments of every job.
        `before`: called before each job is made; the job gets the input that it returns, None keeps `input`. With it
        `input` may be left out, even if the task has arguments without a default. `after`: called after the job was
        made. Both run in a separate job, which is tried again when it fails; the schedule's own job is made once.

        Raises: InvalidInputError, ConfigurationError, InvalidTokenError.
        """
        self.name = check_token("schedule name", name) if name else ""
        self.task = task
        self.input = dict(input or {})
        self.before = before
        self.after = after
        self.is_used = False  #: True once a task has a copy of it
        self._definition = Definition(
            spec=Spec(cron=cron, every_s=every_s, at=at, timezone=timezone),
            task="task",
            queue="queue",
            overlap=overlap,
            catchup=catchup,
            window_s=window_s,
            jitter_s=jitter_s,
            ends_at=ends_at,
            source="code",
            code_version="unknown",  # the version before the task is known; see `definition`
            hooks=bool(before or after),
        )
        keep_utc(self._definition.spec, "at")
        keep_utc(self._definition, "ends_at")
        check_definition(self._definition)

    def __repr__(self) -> str:
        """Show its name."""
        return f"<schedule {self.name}>"

    def of(self, task: AnyTask) -> Schedule:
        """Return this schedule with its task, and the task's name if it has none of its own.

        Raises: ConfigurationError if it has another task.
        """
        if self.task is not None:
            raise ConfigurationError(
                f"schedule {self.name or 'of a task'} has a task: leave out task= in @task(schedule=...)"
            )
        self.is_used = True
        own = copy.copy(self)
        own.task, own.name = task, self.name or task.unpacked[0].name
        return own

    def check(self) -> None:
        """Refuse mistakes that show only at the load of the module: no name, no task, or an input not for the task.

        Raises: ConfigurationError, InvalidInputError, TaskDefinitionError.
        """
        if not self.name or self.task is None:
            raise ConfigurationError(
                f"schedule {self.name or '(without a name)'} needs a name and a task: give both, or write "
                "@task(schedule=...)"
            )
        check_options(self.name, self._unpacked()[1])
        if self._definition.hooks and len(self.name) > _NAME_MAX_WITH_HOOKS:
            raise ConfigurationError(
                f"schedule {self.name} has hooks: give it a name of at most {_NAME_MAX_WITH_HOOKS} characters"
            )
        try:
            self._input_text()
        except InvalidInputError as error:
            raise InvalidInputError(f"schedule {self.name}: {error}") from error

    @property
    def has_hooks(self) -> bool:
        """Whether a job of its own calls hooks before each job is made."""
        return self._definition.hooks

    @property
    def declared_input(self) -> Mapping[str, Any] | None:
        """The keyword arguments of its jobs, None if only `before` knows them."""
        signature = self._unpacked()[0].signature
        is_missing = not self.input and set(signature.names) > set(signature.defaults)
        return None if self.before is not None and is_missing else self.input

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        return self._unpacked()[1].queue

    @property
    def fingerprint(self) -> str:
        """A digest of the declaration: processes with the same declaration have the same digest."""
        task, options = self._unpacked()
        parts = (self._definition, task.name, options, self._input_text())
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:_FINGERPRINT_CHARACTERS]

    def definition(self, like: Enqueue) -> Definition:
        """Return its definition for the ledger; `like`: an example of its jobs."""
        return msgspec.structs.replace(
            self._definition,
            task=like.task,
            queue=like.ref.queue,
            order=like.order,
            code_version=self.fingerprint,
        )

    def _input_text(self) -> bytes:
        values = self.declared_input
        text: bytes = b"" if values is None else self._unpacked()[0].signature.encode((), values)
        return text

    def _unpacked(self) -> tuple[Any, Options]:
        assert self.task is not None, "it was checked"
        return self.task.unpacked

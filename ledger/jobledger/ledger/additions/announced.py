"""A task as a worker announced it: the options of its jobs and the schema of their input, without its code."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.additions.schemas import ANY_INPUT, type_of, type_of_input
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import check_text, encode_value
from jobledger.ledger.nats.task_book import TaskEntry
from jobledger.ledger.options import Options
from jobledger.ledger.signature import UNREADABLE, check_names, parse_words
from jobledger.ledger.tasks import Task


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A callback: a task that is enqueued with the outcome when a run of the announced task has ended."""

    on: Literal["success", "fail"]  #: which end
    task: str
    argument: str  #: the name of its argument that says how the run ended
    options: Options
    version: str = ""  #: of its code, where it is a workflow


class EnqueueDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job of a task is enqueued with, as its code says; the JSON in `TaskEntry.enqueued`."""

    options: Options
    version: str = ""  #: of the workflow's code that its runs are bound to
    ends: tuple[End, ...] = ()
    deadline_s: float | None = None  #: how long after its first event a run is cancelled
    plain: tuple[
        str, ...
    ] = ()  #: arguments of which equal values are equal JSON values, which keys can be made of


def enqueued_by_code(task: Task[..., Any]) -> msgspec.Raw:
    """Return what a worker announces of a task's jobs, as JSON. Raises: TaskDefinitionError."""
    ends: list[End] = []
    for on, callback in task.callbacks:
        plain, options = callback.unpacked
        names = plain.signature.names or ("",)  # `callbacks_of` refuses one that takes nothing
        ends.append(End(on=on, task=plain.name, argument=names[0], options=options, version=plain.version))
    said = EnqueueDefaults(
        options=task.defaults,
        version=task.version,
        ends=tuple(ends),
        deadline_s=task.deadline_s,
        plain=task.signature.plain_names,
    )
    return msgspec.Raw(msgspec.json.encode(said))


def entry_of(
    task: Task[..., Any], *, worker: str, at: datetime, versions: tuple[str, ...] | None = None
) -> TaskEntry:
    """Return what a worker announces of a task. Raises: TaskDefinitionError."""
    return TaskEntry(
        name=task.name,
        queue=task.defaults.queue,
        text=inspect.getdoc(task.function) or "",
        input=task.signature.json_schema(),
        worker=worker,
        announced_at=at,
        versions=versions if task.makes_runs else None,
        enqueued=enqueued_by_code(task),
        signals={each.name: each.json_schema() for each in task.signals},
    )


class AnnouncedInput:
    """The input of a task by its announced schema: checked and read as `TaskSignature` does it, as plain values."""

    def __init__(self, task: str, schema: Any) -> None:
        self._task = task
        self.what = f"input of task {task}"  #: as an error calls it
        kind = type_of_input(schema)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self.is_known = kind is not ANY_INPUT  #: whether its arguments are known
        self._is_closed = self.is_known and kind.__struct_config__.forbid_unknown_fields
        fields = msgspec.structs.fields(kind) if self.is_known else ()
        self._fields = {field.encode_name: field.name for field in fields}
        self._types = {field.encode_name: field.type for field in fields}
        self._optional = {field.encode_name: _default_of(field) for field in fields if not field.required}
        self.names = tuple(self._fields)  #: the arguments in their order; () also where they are not known

    @property
    def defaults(self) -> dict[str, Any]:
        """The announced values of the arguments that may be left out."""
        return {name: value for name, value in self._optional.items() if value is not msgspec.UNSET}

    def check_known(self, given: Mapping[str, Any], late: Collection[str]) -> dict[str, Any]:
        """Return an input as JSON values after checking it, except for the arguments in `late`, whose values come later.

        Raises: InvalidInputError with the task, the argument and what is wrong.
        """
        plain: dict[str, Any] = msgspec.json.decode(encode_value(given, what=self.what))
        if not self.is_known:
            return plain
        # A schema may let arguments through that it does not name.
        named = plain if self._is_closed else plain.keys() & set(self.names)
        check_names(self._task, self.names, self._optional, named)
        for name in self.names:
            if name in plain and name not in late:
                self._check(name, plain[name])
        return plain

    def _check(self, name: str, value: Any) -> None:
        try:
            msgspec.json.decode(msgspec.json.encode(value), type=self._types[name])
        except UNREADABLE as error:
            raise InvalidInputError(f"task {self._task}, argument {name}: {error}") from error

    def text(self, given: object) -> bytes:
        """Check an input and return it as JSON text: JSON text or a `Raw` as its own bytes, values encoded.

        Raises: InvalidInputError with the task, the place and what is wrong.
        """
        if isinstance(given, bytes | bytearray | msgspec.Raw):
            text = check_text(bytes(given), what=self.what)
        else:
            text = encode_value(given, what=self.what)
        self._read(text)
        return text

    def decode(self, text: bytes | msgspec.Raw) -> dict[str, Any]:
        """Return the arguments in an input's JSON text, with the announced defaults. Raises: InvalidInputError."""
        found = self._read(text)
        if not self.is_known:
            return dict(found)
        values = {name: getattr(found, field) for name, field in self._fields.items()}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def parse_words(self, words: Mapping[str, str]) -> dict[str, Any]:
        """Read key=value words by the announced types; any where these are not known. Raises: InvalidInputError."""
        types = self._types if self.is_known else dict.fromkeys(words, Any)
        return parse_words(self._task, types, words)

    def _read(self, text: bytes | msgspec.Raw) -> Any:
        try:
            return self._decoder.decode(text)
        except UNREADABLE as error:
            expected = ", ".join(self.names) if self.is_known else "any arguments"
            raise InvalidInputError(f"task {self._task} ({expected}): {error}") from error

    def read_result(self, text: bytes, job_id: str) -> Any:  # noqa: ARG002 - as a `TaskSignature` does
        """Return a result as plain JSON values: what the task promises of it is not announced."""
        return msgspec.json.decode(text)


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    """Return the default of a field; `UNSET` where the announced schema has none."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


class _AnnouncedSignal:
    """A signal that runs of an announced workflow wait for."""

    def __init__(self, workflow: str, name: str, schema: Any) -> None:
        self.name = name
        self.schema = schema  #: JSON Schema of what it says
        self._workflow = workflow
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type_of(schema))

    def check(self, text: bytes) -> None:
        """Refuse a value, JSON text, that no wait for it can read. Raises: InvalidInputError."""
        try:
            self._decoder.decode(text)
        except UNREADABLE as error:
            message = (
                f"the value of signal {self.name} is not what workflow {self._workflow} waits for: {error}"
            )
            raise InvalidInputError(message) from error


class AnnouncedTask:
    """A task whose code is not here. It is enqueued like one with code."""

    def __init__(self, entry: TaskEntry, *, is_known: bool = True) -> None:
        """Read a worker's announcement. Raises: msgspec.MsgspecError for one in a newer form."""
        said = EnqueueDefaults(options=Options(queue=entry.queue))
        if entry.enqueued is not NO_VALUE:
            said = msgspec.json.decode(entry.enqueued, type=EnqueueDefaults)
        self.entry = entry
        self.is_known = is_known  #: whether a worker ever had it
        self.name = entry.name
        self.defaults = said.options
        self.version = said.version
        self.deadline_s = said.deadline_s
        self.plain = said.plain
        self.signature = AnnouncedInput(entry.name, entry.input)
        self.signals = {
            name: _AnnouncedSignal(entry.name, name, schema) for name, schema in entry.signals.items()
        }
        #: Options, made and checked, of jobs that named a queue and an asker at most: by these two names.
        self.kept: dict[tuple[str | None, str | None], Options] = {}
        self.callbacks: tuple[tuple[Literal["success", "fail"], _AnnouncedEnd], ...] = tuple(
            (end.on, _AnnouncedEnd(end)) for end in said.ends
        )

    def is_as(self, entry: TaskEntry) -> bool:
        """Return whether an entry says the same of the task, whichever worker says it."""
        known = self.entry
        return all(getattr(known, name) == getattr(entry, name) for name in _SAID)


#: What an entry says of its task, whoever says it.
_SAID: Final = ("queue", "input", "enqueued", "signals")


class _AnnouncedEnd:
    """A task at the end of a run, as `callbacks_of` asks for it."""

    def __init__(self, end: End) -> None:
        self.name = end.task
        self.version = end.version
        self.signature = _Takes((end.argument,))
        self._options = end.options

    @property
    def unpacked(self) -> tuple[_AnnouncedEnd, Options]:
        """The task, and the options that a job of it has."""
        return self, self._options


class _Takes(msgspec.Struct, frozen=True):
    names: tuple[str, ...]

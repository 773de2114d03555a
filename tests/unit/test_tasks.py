"""`@task`: names, options, the typed input, and finding tasks in modules."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from tests.support.tables import each_row

from jobledger.ledger import Cancel, Context, Fail, Retry, Snooze, Task, TaskRegistry, task
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidTokenError,
    TaskDefinitionError,
    UnknownTaskError,
)


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Address:
    street: str
    number: int = 1


def no_input() -> None: ...


def plain(a: int, b: str = "x", *, c: float | None = None) -> None: ...


def rich(when: datetime, colour: Colour, address: Address, names: list[str], raw: bytes) -> None: ...


def with_context(context: Context, a: int) -> None: ...


def with_late_context(a: int, *, ctx: Annotated[Context, "mine"]) -> None: ...


def with_optional_context(a: int, context: Context | None = None) -> None: ...


def without_annotations(a, b=2):  # type: ignore[no-untyped-def] # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    ...


def mutable(a: list[int] = [], b: dict[str, int] = {}) -> None: ...  # noqa: B006


def many(*args: int) -> None: ...


def anything(**kwargs: int) -> None: ...


def positional(a: int, /) -> None: ...


def unreadable(a: complex) -> None: ...


def unresolved(a: "NoSuchType") -> None: ...  # type: ignore[name-defined] # noqa: F821, UP037 # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]


def made(function: Any, **options: Any) -> Task[..., Any]:
    result: Task[..., Any] = task(**options)(function)
    return result


def test_a_task_keeps_name_doc_and_kind() -> None:
    async def waits() -> None:
        """Wait."""

    one, two = task(waits), task(name="other-name")(plain)
    assert (one.name, one.is_async, one.__doc__) == ("waits", True, "Wait.")
    assert (two.name, two.is_async) == ("other-name", False)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1,), {}, b'{"a":1}'),
        ((1, "y"), {}, b'{"a":1,"b":"y"}'),
        ((), {"a": 1, "c": 2.5}, b'{"a":1,"c":2.5}'),
        ((1,), {"c": None}, b'{"a":1,"c":null}'),
    ],
)
def test_an_input_is_an_object_of_its_parameters(args: Any, kwargs: Any, text: bytes) -> None:
    assert made(plain).signature.encode(args, kwargs) == text


@each_row(
    ("args", "kwargs", "words"),
    [
        ((), {}, "a"),
        ((1, 2), {}, "str"),
        ((1, "y", 2.0), {}, "takes 2 positional arguments, got 3"),
        ((1,), {"a": 2}, "'a' is given twice"),
        ((1,), {"d": 2}, "d"),
        (("1",), {}, "int"),
    ],
)
def test_a_wrong_input_names_task_and_reason(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match="task plain") as caught:
        made(plain).signature.encode(args, kwargs)
    assert words in str(caught.value)


def test_rich_types_come_to_the_task_as_what_they_are() -> None:
    signature = made(rich).signature
    given = {
        "when": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "colour": Colour.RED,
        "address": Address("Main"),
        "names": ["a"],
        "raw": b"\x00\xff",
    }
    assert signature.decode(signature.encode((), given)) == given


@pytest.mark.parametrize("function", [with_context, with_late_context, with_optional_context])
def test_the_context_is_no_part_of_the_input(function: Any) -> None:
    signature = made(function).signature
    assert signature.context_parameter in {"context", "ctx"}
    assert signature.encode((1,), {}) == b'{"a":1}'
    with pytest.raises(InvalidInputError):
        signature.encode((1,), {signature.context_parameter: None})


def test_defaults_are_applied_anew_at_each_run() -> None:
    signature = made(mutable).signature
    first = signature.decode(b"{}")
    first["a"].append(1)
    first["b"]["x"] = 1
    assert signature.decode(b"{}") == {"a": [], "b": {}}
    defaults: Any = mutable.__defaults__
    assert defaults == ([], {})


def test_parameters_without_annotation_take_any_json() -> None:
    signature = made(without_annotations).signature
    assert signature.decode(signature.encode(({"x": [1, None]},), {})) == {"a": {"x": [1, None]}, "b": 2}


_UNFIT: list[Any] = [many, anything, positional, unreadable, unresolved]


@each_row("function", _UNFIT)
def test_a_function_that_cannot_be_a_task_is_told_when_it_is_registered(function: Any) -> None:
    with pytest.raises(TaskDefinitionError, match=f"task {function.__name__}"):
        TaskRegistry([made(function)])


@each_row("name", ["", "a.b", "a b", "x" * 65, "ä"])
def test_a_name_must_be_a_token(name: str) -> None:
    with pytest.raises(InvalidTokenError):
        Task(plain, name, made(plain).defaults)


def test_options_are_for_one_job_and_leave_the_task_alone() -> None:
    mine = made(plain, queue="mail", max_attempts=2)
    chosen = mine.options(priority="high", timeout_s=3, id="x").chosen
    assert (chosen.queue, chosen.max_attempts, chosen.priority, chosen.timeout_s, chosen.id) == (
        "mail",
        2,
        "high",
        3,
        "x",
    )
    assert (mine.defaults.priority, mine.defaults.id) == ("normal", None)


@each_row(
    ("words", "parsed"),
    [
        ({"a": "1"}, {"a": 1}),
        ({"a": "1", "b": "2"}, {"a": 1, "b": "2"}),
        ({"a": "-1", "c": "1.5"}, {"a": -1, "c": 1.5}),
        ({"a": "1", "c": "null"}, {"a": 1, "c": None}),
        ({"a": "1", "b": "null"}, {"a": 1, "b": "null"}),
        ({"a": "1", "b": ""}, {"a": 1, "b": ""}),
    ],
)
def test_words_are_read_by_the_parameters_types(words: dict[str, str], parsed: dict[str, Any]) -> None:
    assert made(plain).signature.parse_words(words) == parsed


@each_row("words", [{"a": "one"}, {"a": ""}, {"a": "1.5"}, {"d": "1"}, {"c": "[" * 100_000}])
def test_words_that_do_not_fit_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made(plain).signature.parse_words(words)
    assert len(str(caught.value)) < 300


def test_words_for_rich_types() -> None:
    parsed = made(rich).signature.parse_words(
        {
            "when": "2026-01-02T03:04:05Z",
            "colour": "red",
            "address": '{"street": "Main"}',
            "names": '["a"]',
            "raw": "AAE=",
        }
    )
    text = msgspec.json.encode(parsed)
    assert made(rich).signature.decode(text)["address"] == Address("Main")


def test_two_tasks_of_one_name_are_refused_and_one_task_twice_is_not() -> None:
    first, second = made(plain), made(rich, name="plain")
    assert len(TaskRegistry([first, first])) == 1
    with pytest.raises(ConfigurationError, match="two tasks are called 'plain'"):
        TaskRegistry([first, second])


def test_an_unknown_task_lists_what_is_known() -> None:
    with pytest.raises(UnknownTaskError, match="no_input, plain"):
        TaskRegistry([made(plain), made(no_input)]).get("nothing")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


SOURCE = "from jobledger.ledger import task\n@task(queue='q1')\ndef found(a: int) -> int:\n    return a\n"


def test_tasks_are_found_in_a_module_and_in_a_file(folder: Path) -> None:
    (folder / "found_by_name.py").write_text(SOURCE, encoding="utf-8")
    (folder / "found_by_path.py").write_text(SOURCE.replace("found", "other"), encoding="utf-8")
    registry = TaskRegistry.load(["found_by_name", str(folder / "found_by_path.py")])
    assert sorted(each.name for each in registry) == ["found", "other"]
    assert registry.queues == ["q1"]


@pytest.mark.parametrize(
    ("source", "words"),
    [(None, "no module"), ("x = 1\n", "holds no task")],
)
def test_a_module_without_tasks_is_a_sentence(folder: Path, source: str | None, words: str) -> None:
    if source is not None:
        (folder / "some_tasks.py").write_text(source, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=words):
        TaskRegistry.load(["some_tasks"])


@each_row("name", ["", ".", "..x", "a..b", "no/such/file.py", "x y"])
def test_a_name_that_is_no_module_is_a_sentence(name: str) -> None:
    with pytest.raises(ConfigurationError):
        TaskRegistry.load([name])


@pytest.mark.parametrize(
    "source", ["def broken(:\n", "raise RuntimeError('no')\n", "import no_such_thing_at_all\n"]
)
def test_a_broken_module_shows_its_own_error(folder: Path, source: str) -> None:
    # Their traceback is what the author needs; it must not be taken for a missing module.
    (folder / "broken_tasks.py").write_text(source, encoding="utf-8")
    with pytest.raises((SyntaxError, RuntimeError, ModuleNotFoundError)):
        TaskRegistry.load(["broken_tasks"])


class _Shop:
    def method(self, a: int) -> None: ...

    @staticmethod
    def static(a: int) -> None: ...

    @classmethod
    def of_class(cls, a: int) -> None: ...


async def yields() -> AsyncGenerator[int, None]:
    yield 1


def yields_in_thread() -> Generator[int, None, None]:
    yield 1


@each_row(
    ("decorated", "words"),
    [
        (_Shop.method, "_Shop.method cannot be a task: it belongs to a class"),
        (_Shop().method, "it belongs to a class"),
        (_Shop.static, "it belongs to a class"),
        (_Shop.of_class, "define it at the top of a module"),
        (yields, "yields cannot be a task: it yields, and a job has one result"),
        (yields_in_thread, "return a list"),
        (functools.partial(plain, 1), "it is a partial, which has no name; define a function that calls it"),
        (_Shop, "it is no function"),
        (_Shop(), "it is no function"),
    ],
)
def test_what_no_job_could_run_is_refused_where_it_is_defined(decorated: Any, words: str) -> None:
    for decorate in (task, task(name="shop", max_attempts=2)):
        with pytest.raises(TaskDefinitionError) as caught:
            decorate(decorated)
        assert words in str(caught.value)


def test_a_function_within_a_function_may_be_a_task() -> None:
    @task
    def inner(a: int) -> int:
        return a

    assert inner.name == "inner"
    assert inner(3) == 3
    assert made(functools.lru_cache(plain)).name == "plain"


class _Tree(msgspec.Struct):
    branches: list[_Tree]
    note: object = None


class _Foreign: ...


@dataclasses.dataclass
class _HoldsForeign:
    one: _Foreign


def returns(annotation: Any) -> Task[..., Any]:
    def work() -> None: ...

    work.__annotations__["return"] = annotation
    return made(work)


@each_row(
    ("annotation", "text", "value"),
    [
        (int | None, b"null", None),
        (list[int] | Retry | Snooze | Cancel, b"[1]", [1]),
        (Optional[Annotated[Colour, "x"]], b'"red"', Colour.RED),  # noqa: UP045 - the older spelling
        (Retry, b'{"a":1}', {"a": 1}),
        (Cancel | Fail, b"null", None),
        (object, b"[null]", [None]),
        (NoReturn, b"1", 1),
        (dict[str, object], b'{"a":[1]}', {"a": [1]}),
        (_Tree, b'{"branches":[{"branches":[]}],"note":[1]}', _Tree([_Tree([])], [1])),
    ],
)
def test_a_result_is_read_as_annotated_and_outcomes_are_none(
    annotation: Any, text: bytes, value: Any
) -> None:
    assert returns(annotation).signature.read_result(text, "job-1") == value


@each_row(
    ("annotation", "words"),
    [
        (_Foreign, "its result is a _Foreign, which JSON cannot hold"),
        (list[_Foreign], "its result holds a _Foreign"),
        (_HoldsForeign | Cancel, "its result holds a _Foreign"),
        (Address | _HoldsForeign, "the type of its result cannot be read from JSON"),
    ],
)
def test_a_result_that_json_cannot_hold_is_refused_as_a_parameter_is(annotation: Any, words: str) -> None:
    with pytest.raises(TaskDefinitionError, match="task work: ") as caught:
        TaskRegistry([returns(annotation)])
    assert words in str(caught.value)


def test_a_parameter_that_holds_what_json_cannot_is_refused() -> None:
    def takes(a: dict[str, list[_HoldsForeign]]) -> None: ...

    with pytest.raises(TaskDefinitionError, match="parameter a holds a _Foreign, which JSON cannot hold"):
        _ = made(takes).signature


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: datetime
    count: int = pydantic.Field(gt=0, alias="howMany")
    share: float | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.count


class Names(pydantic.RootModel[list[str]]): ...


@pydantic.dataclasses.dataclass
class Checked:
    count: int = pydantic.Field(gt=0)


LINE = Line(at=datetime(2026, 1, 2, tzinfo=UTC), howMany=3)


def takes_models(line: Line, lines: dict[str, list[Line]], file: Path, names: Names | None = None) -> Line:
    return line


def test_models_and_paths_come_to_the_task_as_what_they_are() -> None:
    signature = made(takes_models).signature
    given = {"line": LINE, "lines": {"a": [LINE]}, "file": Path("/a/b"), "names": Names(["x"])}
    text = signature.encode((), given)
    assert signature.decode(text) == given
    assert msgspec.json.decode(text)["line"] == {
        "at": "2026-01-02T00:00:00Z",
        "howMany": 3,
        "share": None,
    }
    assert signature.read_result(b'{"at":"2026-01-02T00:00:00Z","howMany":3}', "job-1") == LINE
    words = {"line": '{"at":"2026-01-02T00:00:00Z","howMany":3}', "file": "/a/b", "names": '["x"]'}
    parsed = signature.parse_words(words)
    assert signature.decode(signature.encode((), {**parsed, "lines": {}})) == {**given, "lines": {}}


@each_row(
    ("line", "words"),
    [
        (
            {"at": "2026-01-02T00:00:00Z", "howMany": 0},
            "howMany: Input should be greater than 0 - at `$.line`",
        ),
        ({"at": "2026-01-02T00:00:00Z", "howMany": "a-secret"}, "howMany: Input should be a valid integer"),
        ({"at": "2026-01-02T00:00:00Z"}, "howMany: Field required"),
        ({"at": "2026-01-02T00:00:00Z", "howMany": 1, "x": 1}, "x: Extra inputs are not permitted"),
        (LINE.model_copy(update={"share": float("nan")}), "nan, which JSON cannot say"),
        (LINE.model_copy(update={"count": -1}), "howMany: Input should be greater than 0"),
        ("a-secret", "Input should be"),
    ],
)
def test_a_model_checks_its_own_input_and_the_sentence_shows_no_value(line: Any, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made(takes_models).signature.encode((line, {}, Path("a")), {})
    assert words in str(caught.value)
    assert "a-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_is_a_text() -> None:
    with pytest.raises(InvalidInputError, match=r"Expected `str` for a `Path`, got `int` - at `\$.file`"):
        made(takes_models).signature.encode((LINE, {}, 7), {})


@each_row(
    ("annotation", "words"),
    [
        (pydantic.HttpUrl, "HttpUrl, which JSON cannot hold: use a type that msgspec knows, a Path or"),
        (Checked, "a is a dataclass of pydantic, whose checks would not be made: use a model"),
        (list[Checked], "a holds a dataclass of pydantic"),
        (Path | str, "may not contain any additional types other than `None`"),
        (Line | int, "may not contain any additional types other than `None`"),
    ],
)
def test_what_neither_library_can_read_is_refused_with_what_to_use(annotation: Any, words: str) -> None:
    def takes(a: Any) -> None: ...

    takes.__annotations__["a"] = annotation
    with pytest.raises(TaskDefinitionError, match="task takes: ") as caught:
        TaskRegistry([made(takes)])
    assert words in str(caught.value)

"""Write the pages that follow from the code (`make docs`); with `--check` only compare them.

docs/code.md lists the folders; docs/events.md, docs/lifecycle.md and docs/locks.md follow from the
declarations of events, docs/projections.md from those of tables, docs/metrics.md from those of metrics, docs/cli.md
from those of commands, the settings in docs/operations.md from `LedgerConfig`, docs/search.md from the keys of
searches, docs/subjects.md from the table of rights, docs/errors.md from the classes of errors, tables and charts of
docs/performance.md from the run in benchmarks/peers, each other docs/diagrams/*.svg from the text beside it. What people wrote stays: only what lies between the markers is replaced.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import msgspec
import performance
from commands import Reference
from diagrams import diagram

import jobledger.ledger
from jobledger.admin.amounts import size
from jobledger.admin.permissions import PARTS, ROLES, Part, let_through
from jobledger.cli.processes.settings import LEDGER
from jobledger.gateway.process.counters import GATEWAY_METRICS
from jobledger.ledger.config import Access, LedgerConfig
from jobledger.ledger.metrics.exposition import Measure
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.aggregates import AGGREGATES, JOB, event_name
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.events import Cause, Order
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.lifecycle import CAUSES, LEGAL, LIFECYCLE, ORDERS, PAST_ITS_LIMITS
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.outbox.metrics import OUTBOX_METRICS
from jobledger.ledger.schema.asyncapi import addresses_of
from jobledger.ledger.schema.events import Schema, SchemaBuilder, field_notes
from jobledger.projections.metrics.names import EXPORTER_METRICS
from jobledger.projections.search import KEYS, STATE_GROUPS, pair
from jobledger.projections.table import Column, Table, View
from jobledger.projections.tables.registry import all_queries, all_tables, all_views
from jobledger.workers.metrics import WORKER_METRICS

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
ROOTS: Final = tuple(
    name
    for name in ("ledger", "audit", "projections", "workers", "admin", "gateway", "cli", "testing")
    if (ROOT / name).is_dir()
)
_TO_THE_END: Final = "<!-- from here on written by docs/generate.py -->\n"
_END: Final = "<!-- end -->\n"

Lines = Iterator[str]


def _after_marker(text: str, generated: Iterable[str]) -> str:
    """Return a page whose end is generated."""
    written, marker, _ = text.partition(_TO_THE_END)
    assert marker, f"the page has no line {_TO_THE_END!r}"
    return written + marker + "".join(generated)


def _between_markers(text: str, name: str, generated: Iterable[str]) -> str:
    """Return a page with what stands between two markers replaced."""
    begin = f"<!-- {name}: written by docs/generate.py -->\n"
    before, marker, rest = text.partition(begin)
    _, end, after = rest.partition(_END)
    assert marker, f"the page has no line {begin!r}"
    assert end, f"{begin!r} has no end"
    return f"{before}{begin}\n{''.join(generated)}\n{_END}{after}"


# The map of the code.


_UNSAID = frozenset({tokenize.COMMENT, tokenize.NL})


def _first_line(path: Path) -> str:
    with path.open(
        encoding="utf-8"
    ) as source:  # read as far as that: to parse all that follows takes a second
        first = next(each for each in tokenize.generate_tokens(source.readline) if each.type not in _UNSAID)
    assert first.type == tokenize.STRING, f"{path.relative_to(ROOT)} has no docstring"
    text: str = ast.literal_eval(first.string)
    return text.strip().partition("\n")[0].replace("|", "\\|")


def _packages(folder: Path) -> Iterator[Path]:
    yield folder
    for below in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _packages(below)


def _folder_row(package: Path) -> str:
    place = package.relative_to(ROOT).as_posix()
    name = ".".join(package.relative_to(ROOT).parts[2:])
    return f"| [{name}](../{place}) | {_first_line(package / '__init__.py')} |\n"


def _code(text: str) -> str:
    packages = (package for root in ROOTS for package in _packages(ROOT / root / "jobledger" / root))
    head = "\n## Folders\n\n| Below `jobledger` | What it holds |\n|---|---|\n"
    return _after_marker(text, (head, *map(_folder_row, packages)))


# The events.


def _paragraph(text: str, first: str = "", rest: str = "") -> str:
    wrapped = textwrap.wrap(
        text,
        100,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapped) + "\n"


def _codes(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


_PLAIN: Final = {"string": "text", "boolean": "true or false"}


def _type_words(schema: Schema) -> str:
    """Return a field's type in words; an object leads to its own table."""
    if "$ref" in schema:
        return f"[{schema['$ref']}](#{schema['$ref'].lower()})"
    if "anyOf" in schema:
        return " or ".join(_type_words(each) for each in schema["anyOf"] if each != {"type": "null"})
    if "enum" in schema:
        return _codes(schema["enum"])
    if schema.get("format") == "date-time":
        return "time"
    if schema.get("type") == "array":
        return f"list of {_type_words(schema['items'])}"
    if "additionalProperties" in schema:
        return f"object of {_type_words(schema['additionalProperties'])}"
    kind = str(schema.get("type", "text" if "const" in schema else "any JSON"))
    return _PLAIN.get(kind, kind)


def _default_words(name: str, schema: Schema) -> str:
    if name in schema["required"]:
        return ""
    field = schema["properties"][name]
    if "default" not in field:
        return "empty" if field.get("type") == "object" else "no value"
    value = field["default"]
    if value is None:
        return "none"
    return f"`{json.dumps(value)}`" if value or value is False or value == 0 else "empty"


def _fields(schema: Schema, names: Iterable[str]) -> Lines:
    """The table of some fields of a class."""
    rows = list[str]()
    for name in names:
        field = schema["properties"][name]
        assert "description" in field, f"`{name}` of `{schema['title']}` has no comment `#:`"
        cells = (f"`{name}`", _type_words(field), _default_words(name, schema), field["description"])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    if rows:
        yield "| Field | Type | Default | Meaning |\n|---|---|---|---|\n"
        yield from rows
        yield "\n"


def _states(states: Iterable[JobState | None]) -> str:
    found = set(states)
    return "any state" if found >= set(JobState) else _codes(state for state in JobState if state in found)


def _of_lifecycle(tag: str, required: list[str]) -> Lines:
    """What the table of events says of a job's event."""
    row = LIFECYCLE[JOB.types[tag]]
    after = _states(state for state in row.after if state is not None)
    if None in row.after:
        yield "May begin a job."
    if after:
        yield f"May follow in {after}."
    yield (
        f"The job is then {' or '.join(f'`{state}`' for state in row.to)}."
        if row.to
        else "Leaves the job in its state."
    )
    if row.ends is not None and JobState.RUNNING in row.after:
        yield f"An attempt that runs ends as `{row.ends}`."
    if row.claimed:
        yield "Only the holder of the claim may append it."
    if row.due:
        yield f"A timer moves the job on at `{row.due}`{'' if row.due in required else ', where it is given'}."
    if row.payloads:
        yield f"Refers to large values in {_codes(field for _, field in row.payloads)}."
    if row.order:
        changes = "; after the job's first event only those that changed" if after else ""
        yield f"Has the fields of [Order](#order) too{changes}."


def _addresses(aggregate: Aggregate[Any, Any], tag: str) -> list[str]:
    return [re.sub(r"\{(\w+)\}", r"<\1>", address) for address in addresses_of(aggregate.name, tag)]


def _event(aggregate: Aggregate[Any, Any], tag: str, builder: SchemaBuilder, shared: set[str]) -> Lines:
    cls = aggregate.types[tag]
    yield f"### {event_name(aggregate.name, tag)}\n\n"
    for paragraph in (inspect.getdoc(cls) or "").split("\n\n"):
        yield _paragraph(" ".join(paragraph.split())) + "\n"
    schema = builder.of_struct(cls)
    of_lifecycle = _of_lifecycle(tag, schema["required"]) if aggregate is JOB else ()
    addresses = " or ".join(f"`{address}`" for address in _addresses(aggregate, tag))
    facts = [f"Subject: {addresses}", *of_lifecycle]
    yield "".join(_paragraph(fact, "- ", "  ") for fact in facts) + "\n"
    elsewhere = {*shared, *Order.__struct_fields__} if cls in ORDERS else shared
    yield from _fields(schema, (name for name in schema["properties"] if name not in elsewhere))


_ENVELOPE: Final = ("type", *Envelope.__struct_fields__)


def _events(aggregate: Aggregate[Any, Any], builder: SchemaBuilder, page: str = "") -> Lines:
    """Every event of an aggregate; `page` is the one that has the fields of every event, where that is another."""
    schemas = [builder.of_struct(cls) for cls in aggregate.types.values()]
    shared = {
        name for name in schemas[0]["properties"] if all(name in each["properties"] for each in schemas)
    }
    own = [name for name in schemas[0]["properties"] if name in shared.difference(_ENVELOPE)]
    yield f"Each has the [fields of every event]({page}#fields-of-every-event) and:\n\n"
    yield from _fields(schemas[0], own)
    for tag in aggregate.types:
        yield from _event(aggregate, tag, builder, shared)


def _subjects() -> Lines:
    yield "| Subject | Chain of | Events |\n|---|---|---|\n"
    for aggregate in AGGREGATES.values():
        by_form: dict[str, list[str]] = {}
        for tag in aggregate.types:
            anchor = event_name(aggregate.name, tag).replace(".", "")  # as pages make them of headings
            for address in _addresses(aggregate, tag):
                form = re.sub(rf"\b{tag}$", "<event>", address)
                by_form.setdefault(form, []).append(f"[{tag}](#{anchor})")
        for form, links in by_form.items():
            yield f"| `{form}` | {aggregate.name} | {' '.join(links)} |\n"


def _all_events() -> Lines:
    builder = SchemaBuilder("")
    yield "\n## Fields of every event\n\n"
    yield from _fields(builder.of_struct(Envelope), _ENVELOPE)
    for aggregate in AGGREGATES.values():
        about = "about unreadable messages" if aggregate.name == "unreadable" else f"of a {aggregate.name}"
        yield f"## Events {about}\n\n"
        yield from _events(aggregate, builder)
    yield "## Objects in fields\n\n"
    for name, schema in builder.definitions.items():
        yield f"### {name}\n\n{_paragraph(schema['description'])}\n"
        yield from _fields(schema, schema["properties"])


def _event_page(text: str) -> str:
    text = _between_markers(text, "subjects", _subjects())
    return _after_marker(text, "".join(_all_events()).rstrip("\n") + "\n")


def _lock_page(text: str) -> str:
    return _between_markers(
        text, "events", "".join(_events(LOCK, SchemaBuilder(""), "events.md")).rstrip("\n") + "\n"
    )


# The lifecycle of a job.


def _state_table(head: str, rows: Iterable[tuple[JobState | None, Iterable[str]]]) -> Lines:
    yield f"| {head} |\n|---|---|\n"
    for state, names in rows:
        if found := _codes(names):
            yield f"| {'(no job yet)' if state is None else f'`{state.value}`'} | {found} |\n"


def _lifecycle_page(text: str) -> str:
    follow = (
        (state, (event_tag for event_tag, cls in JOB.types.items() if cls in LEGAL[state])) for state in LEGAL
    )
    causes = ((state, (cause for cause in get_args(Cause) if cause in CAUSES[state])) for state in CAUSES)
    text = _between_markers(text, "follow", _state_table("State | Events that may follow", follow))
    text = _between_markers(text, "causes", _state_table("State before | Causes", causes))
    past = _codes(cause for cause in get_args(Cause) if cause in PAST_ITS_LIMITS)
    sentence = f"Causes with which a job that has limits is `queued` all the same: {past}."
    return _between_markers(text, "limits", _paragraph(sentence))


# The tables of a projection.


_SQL_TYPES: Final = {str: "text", int: "integer", float: "real", bytes: "blob"}
_NAMES_SHOWN_MAX: Final = 20


def _column_rows(columns: Mapping[str, Column]) -> Lines:
    """One row a column; columns that follow each other and mean the same share one."""
    yield "| Column | Type | Meaning |\n|---|---|---|\n"
    for column, group in itertools.groupby(columns.items(), key=lambda item: item[1]):
        names = [name for name, _ in group]
        few = names if len(names) <= _NAMES_SHOWN_MAX else [names[0], "...", names[-1]]
        words = _codes(few).replace("`...`", "...")
        internal = " *(internal)*" if column.is_internal else ""
        kind = "time" if column.is_time else _SQL_TYPES[column.type]
        yield f"| {words} | {kind} | {column.meaning}{internal} |\n"
    yield "\n"


def _table_rows(tables: Iterable[Table]) -> Lines:
    yield "| table | one row per | key |\n|---|---|---|\n"
    for each in tables:
        yield f"| [`{each.name}`](#{each.name}) | {each.row} | {', '.join(f'`{name}`' for name in each.key)} |\n"


def _view(view: View) -> str:
    renamed = "".join(f" `{name}` is `{kept}` there." for kept, name in view.renamed.items())
    return _paragraph(f"Columns of `{view.of.name}`: {_codes(view.columns)}.{renamed}")


def _projection_page(text: str) -> str:
    views = [f"#### {each.name}\n\n{_view(each)}" for each in all_views()]
    views += [
        "".join((f"#### {each.name}\n\n", *_column_rows(each.columns))).rstrip("\n") + "\n"
        for each in all_queries()
    ]
    text = _between_markers(text, "views", "\n".join(views))
    text = _between_markers(text, "tables", _table_rows(all_tables()))
    tables = (
        part for table in all_tables() for part in (f"#### {table.name}\n\n", *_column_rows(table.columns))
    )
    return _between_markers(text, "columns", "".join(tables).rstrip("\n") + "\n")


# The command line.


def _command_line(text: str) -> str:
    reference = Reference()
    text = _between_markers(text, "server", reference.server_items())
    text = _between_markers(text, "shared", reference.shared_items())
    text = _between_markers(text, "settings", reference.settings_table())
    return reference.page(text)


def _client_settings() -> Lines:
    notes = field_notes(LedgerConfig)
    yield "| Setting of `connect` | Default | Meaning |\n|---|---|---|\n"
    elsewhere = {"url", *Access.__struct_fields__}
    for field in (each for each in msgspec.structs.fields(LedgerConfig) if each.name not in elsewhere):
        of_option = LEDGER[field.name].default if field.name in LEDGER and field.name != "name" else ""
        yield f"| `{field.name}` | {of_option or _usual(field)} | {notes[field.name]} |\n"


def _usual(field: msgspec.structs.FieldInfo) -> str:
    match field.default:
        case bool(value):
            return "yes" if value else "no"
        case int(value) if "bytes" in field.name:
            return size(value).replace(".0 ", " ")
        case float(value):
            return f"{value:g} s"
        case str(value) if value:
            return f"`{value}`"
        case _:
            return "`_INBOX`, and the user" if field.name == "inbox_prefix" else "none"


def _operations(text: str) -> str:
    return _between_markers(text, "settings", _client_settings())


# The metrics.


def _measures(measures: Iterable[Measure]) -> Lines:
    yield "| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    for each in measures:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.kind} | {labels} | {each.help} |\n"


def _metrics_page(text: str) -> str:
    for name, measures in (
        ("exporter", EXPORTER_METRICS),
        ("worker", WORKER_METRICS),
        ("gateway", GATEWAY_METRICS),
        ("relay", OUTBOX_METRICS),
    ):
        text = _between_markers(text, name, _measures(measures))
    return text


# The errors.

_ERRORS: Final = (
    ("ledger/jobledger/ledger/model/errors.py", "jobledger.ledger"),
    ("ledger/jobledger/ledger/model/runs/errors.py", "jobledger.ledger.model.runs.errors"),
    ("ledger/jobledger/ledger/runs/errors.py", "jobledger.ledger.runs.errors"),
    ("ledger/jobledger/ledger/tables/errors.py", "jobledger.ledger.tables.errors"),
    ("ledger/jobledger/ledger/subscriptions/errors.py", "jobledger.ledger"),
    ("ledger/jobledger/ledger/model/hooks/errors.py", "jobledger.ledger"),
    ("ledger/jobledger/ledger/model/graphs/errors.py", "jobledger.ledger"),
    ("audit/jobledger/audit/errors.py", "jobledger.audit.errors"),
    ("projections/jobledger/projections/errors.py", "jobledger.projections.errors"),
)


class _Error(NamedTuple):
    """An error as its module defines it."""

    name: str
    parent: str
    importable: str  #: where an application imports it from
    text: str  #: the docstring, on one line
    attributes: tuple[str, ...]


def _errors_of(path: Path, importable: str) -> Iterator[_Error]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        targets = [each for item in ast.walk(node) if isinstance(item, ast.Assign) for each in item.targets]
        targets += [item.target for item in ast.walk(node) if isinstance(item, ast.AnnAssign)]
        attributes = tuple(
            each.attr for each in targets if isinstance(each, ast.Attribute) and not each.attr.startswith("_")
        )
        text = " ".join((ast.get_docstring(node) or "").split())
        place = "jobledger.ledger" if node.name in jobledger.ledger.__all__ else importable
        yield _Error(node.name, ast.unparse(node.bases[0]), place, text, attributes)


def _error_rows(errors: Iterable[_Error]) -> Lines:
    yield "| Error | When, and what to do | Attributes |\n|---|---|---|\n"
    for each in errors:
        name = f"`{each.name}`" + (
            f" of `{each.importable}`" if each.importable != "jobledger.ledger" else ""
        )
        yield f"| {name} | {each.text.replace('|', chr(92) + '|')} | {_codes(each.attributes)} |\n"


def _below(root: str, errors: list[_Error]) -> list[_Error]:
    """Return every error below one, in the order in which they are defined."""
    found = [root]
    for each in errors:
        if each.parent in found:
            found.append(each.name)
    return [each for each in errors if each.name in found[1:]]


def _error_sections() -> Lines:
    errors = [error for path, place in _ERRORS for error in _errors_of(ROOT / path, place)]
    by_name = {error.name: error for error in errors}
    for branch in (error for error in errors if error.parent == "LedgerError"):
        below = _below(branch.name, errors)
        yield f"\n### {branch.name}\n\n{_paragraph(branch.text)}\n"
        if below:
            yield from _error_rows(below)
    yield f"\n## Projections\n\n{_paragraph(by_name['ProjectionError'].text)}\n"
    yield from _error_rows(_below("ProjectionError", errors))


def _error_page(text: str) -> str:
    return _after_marker(text, "".join(_error_sections()).rstrip("\n") + "\n")


def _search_page(text: str) -> str:
    keys = "".join(
        f"| `{name}:` | {key.what} | `{pair(name, key.example)}` |\n" for name, key in KEYS.items()
    )
    head = "| Key | Finds jobs by | Example |\n|---|---|---|\n"
    states = [f"`{each}`" for each in JobState]
    groups = [f"`{name}` ({', '.join(each)})" for name, each in STATE_GROUPS.items()]
    text = _between_markers(
        text, "states", _paragraph(f"States are {', '.join(states)}, and {' and '.join(groups)}.")
    )
    return _between_markers(text, "keys", head + keys)


# What roles may.


def _rights_page(text: str) -> str:
    """Return the page with a table for each part of the work."""
    parts = (_rights_of(title, part) for title, part in PARTS.items())
    return _after_marker(text, "\n".join(("", *parts, _beside())))


def _beside() -> str:
    """Return the section on what each role may that is another's work."""
    about = (
        "Acts of others that the list of a role does not refuse, since their subjects look like those of its own. Of "
        "a producer or a worker: as bound to a queue, and only in that queue."
    )
    rows = "".join(
        f"| `{role}` | {right.verb} | `{right.subject}` |\n" for role in ROLES for right in let_through(role)
    )
    head = "| Role | Verb | Subject |\n|---|---|---|\n"
    return f"## What lists let through beside\n\n{_filled(about)}\n\n{head}{rows}"


def _filled(text: str) -> str:
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def _rights_of(title: str, part: Part) -> str:
    rows = "".join(f"| {right.verb} | `{right.subject}` | {right.why} |\n" for right in part.rights)
    return f"## {title}\n\n{_filled(part.about)}\n\n| Verb | Subject | For |\n|---|---|---|\n{rows}"


def _performance_page(text: str) -> str:
    run = performance.figures()
    text = _between_markers(text, "run", performance.about(run))
    for name, begins in _TABLES.items():
        text = _between_markers(text, name, performance.tables(run, begins))
    return text


#: How the titles of the tables begin that stand under each heading.
_TABLES: Final = {
    "ratios": ("jobledger's",),
    "enqueue": ("Bulk", "One by one"),
    "drain": ("Drain", "CPU"),
    "latency": ("From enqueue",),
    "rest": ("At rest",),
    "bytes": ("Bytes", "Growth", "Payloads"),
}


def _chart(name: str) -> Callable[[str], str]:
    return lambda _: performance.charts(performance.figures())[name]


def _diagram(text: str) -> Callable[[str], str]:
    return lambda _: diagram(text)


PAGES: Final[dict[str, Callable[[str], str]]] = {
    "cli.md": _command_line,
    "code.md": _code,
    "errors.md": _error_page,
    "events.md": _event_page,
    "lifecycle.md": _lifecycle_page,
    "locks.md": _lock_page,
    "metrics.md": _metrics_page,
    "operations.md": _operations,
    "performance.md": _performance_page,
    "projections.md": _projection_page,
    "search.md": _search_page,
    "subjects.md": _rights_page,
    **{
        f"diagrams/{path.stem}.svg": _diagram(path.read_text(encoding="utf-8"))
        for path in sorted((DOCS / "diagrams").glob("*.txt"))
    },
    **{f"diagrams/performance-{name}.svg": _chart(name) for name in performance.CHARTS},
}


def main() -> int:
    """Write what differs; with `--check` name it and return 1."""
    is_check = "--check" in sys.argv
    stale = 0
    for name, write in PAGES.items():
        path = DOCS / name
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        if (text := write(kept)) != kept:
            stale += 1
            sys.stdout.write(f"docs/{name} differs from the code\n")
            if not is_check:
                path.write_text(text, encoding="utf-8")
    if stale and is_check:
        sys.stdout.write("run `make docs` and commit what it wrote\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Filters: conditions on jobs and on dead letters, and their SQL."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from jobledger.ledger.model.inputs import checked_limits
from jobledger.ledger.model.subjects import INNER_QUEUES
from jobledger.projections.errors import ProjectionConfigError

# One field of a JSON text as a condition in SQL: `field=value` with a name or a JSON pointer (RFC 6901).

_TOKENS_MAX: Final = 16
_LENGTH_MAX: Final = 1_000
#: Each number in a pointer may be an index in a list or a name, so each doubles the paths to compare.
_NUMBERS_MAX: Final = 3
_LITERALS: Final = {"true", "false", "null"}
Condition = tuple[str, tuple[object, ...]]


def field_condition(column: str, field: str, value: str) -> Condition:
    """Return the condition that a field of the JSON text in `column` has a value, and what is bound in it.

    `field`: a name of the outermost object, or a pointer that begins with `/`. `value`: a string, or a
    JSON number, `true`, `false` or `null`. A column without JSON, or with JSON nested too deep, does not match.

    Raises: ProjectionConfigError.
    """
    found = [_equals(column, path, value) for path in _paths(field)]
    terms, values = " OR ".join(term for term, _ in found), [each for _, bound in found for each in bound]
    # CASE: SQLite may evaluate AND in any order, and a text that is not JSON fails the whole statement.
    return f"CASE WHEN json_valid({column}) THEN ({terms}) ELSE 0 END", tuple(values)


def _equals(column: str, path: str, value: str) -> Condition:
    """Return the comparison of one path: first by value, which excludes nearly every row, then by type."""
    found, kind = f"json_extract({column}, ?)", f"json_type({column}, ?)"
    if value in _LITERALS:
        return f"({found} = ? AND {kind} = 'text') OR {kind} = ?", (path, value, path, path, value)
    number = _number(value)
    if number is None:
        return f"({found} = ? AND {kind} = 'text')", (path, value, path)
    # SQLite returns 1 for true, and a number never equals a text.
    return f"({found} IN (?, ?) AND {kind} IN ('text', 'integer', 'real'))", (path, value, number, path)


def _number(value: str) -> int | float | None:
    try:
        found = msgspec.json.decode(value, type=int | float)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, float) or -(1 << 63) <= found < 1 << 63 else float(found)


def _paths(field: str) -> list[str]:
    """Return SQLite's paths for a name or a pointer."""
    if len(field) > _LENGTH_MAX or not field:
        raise ProjectionConfigError(f"an input field has 1 to {_LENGTH_MAX} characters, got {len(field)}")
    if not field.startswith("/"):
        return [f"${_label(field, field)}"]
    tokens = [each.replace("~1", "/").replace("~0", "~") for each in field[1:].split("/")]
    numbers = sum(map(_is_place, tokens))
    if len(tokens) > _TOKENS_MAX or numbers > _NUMBERS_MAX:
        raise ProjectionConfigError(
            f"the pointer {field[:60]!r} goes too deep: at most {_TOKENS_MAX} names, {_NUMBERS_MAX} of them numbers"
        )
    ways = [
        [f"[{each}]", _label(each, field)] if _is_place(each) else [_label(each, field)] for each in tokens
    ]
    return ["$" + "".join(way) for way in itertools.product(*ways)]


def _is_place(token: str) -> bool:
    return token.isascii() and token.isdecimal() and (token == "0" or token[0] != "0") and len(token) < 10  # noqa: PLR2004


def _label(name: str, field: str) -> str:
    if not can_be_named(name):
        raise ProjectionConfigError(
            f"the input field {field[:60]!r} cannot be looked for: a name has a quote, backslash or NUL in it"
        )
    return f'."{name}"'


def can_be_named(name: str) -> bool:
    """Return whether a path of SQLite's can contain a name."""
    return not {'"', "\\", "\0"}.intersection(name)


_TEXT_LENGTH_MAX: Final = 200
#: Columns that `JobFilter.text` is searched in.
_WORDS_OF: Final = ("id", "data", "result", "error", "metadata")


class Term(NamedTuple):
    """A condition on rows of `jobs`."""

    field: str  #: the name of a field of `JobFilter` or of its `said`
    sql: str
    values: tuple[object, ...] = ()


#: Fields of `SaidFilter` that are not compared with a column of the same name.
_OF_SEVERAL: Final = frozenset({"metadata", "limited_by", "owner"})


class SaidFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of jobs by what their enqueuers said of them; None and an empty tuple set no condition."""

    tenant: str | None = None
    correlation: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()  #: pairs that a job must all have
    limited_by: str | None = None  #: `name:key`, or a name alone for any key
    created_by: str | None = None  #: the principal who enqueued the job
    owner: str | None = None  #: owner of the data in the jobs, as `person:17`

    def __post_init__(self) -> None:
        """Refuse an invalid limit: an empty name, as from an unset variable, would choose every job.

        Raises: InvalidInputError, InvalidTokenError.
        """
        if self.limited_by is not None:
            checked_limits((self.limited_by,))

    def __bool__(self) -> bool:
        """Return whether there is a condition."""
        return self != NOTHING_SAID

    def terms(self) -> list[Term]:
        """Return conditions on rows of `jobs`, all of which must hold."""
        terms: list[Term] = []
        for column in self.__struct_fields__:
            word = getattr(self, column)
            if word is not None and column not in _OF_SEVERAL:  # the condition of the partial index
                terms.append(Term(column, f"{column} = ? AND {column} <> ''", (word,)))
        terms += [Term("metadata", *_pair(key, value)) for key, value in self.metadata]
        if self.limited_by is not None:
            found = "instr(' ' || limits || ' ', ?)"  # no name has a space in it
            exact = f" {self.limited_by} "
            begun = exact if ":" in self.limited_by else f" {self.limited_by}:"
            terms.append(Term("limited_by", f"({found} OR {found})", (exact, begun)))
        if self.owner is not None:  # any of the owner's keys: `0` is the character after `/`
            sql = "key >= ? AND key < ? AND key <> ''"
            terms.append(Term("owner", sql, (f"{self.owner}/", f"{self.owner}0")))
        return terms


def _pair(key: str, value: str) -> tuple[str, tuple[str, str]]:
    if can_be_named(key):  # this comparison takes half the time
        return "json_extract(metadata, ?) = ?", (f'$."{key}"', value)
    said = "SELECT 1 FROM json_each(metadata) AS said WHERE said.key = ? AND said.value = ?"
    return f"EXISTS ({said})", (key, value)


NOTHING_SAID: Final = SaidFilter()


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of dead letters; None sets no condition, but see `of_fleet`. Times: of death, ISO-8601 text in UTC."""

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    fingerprint: str | None = None  #: whole or a prefix
    since: str | None = None  #: at this time or later
    until: str | None = None  #: before this time
    said: SaidFilter = NOTHING_SAID
    jobs: JobFilter | None = None  #: further conditions on their jobs, and the queues that are chosen
    #: Patterns of the names of queues and tasks; see `JobFilter`.
    visible_queues: tuple[str, ...] = ()
    visible_tasks: tuple[str, ...] = ()

    def terms(self) -> list[Term]:
        """Return every condition, on rows of `dead_letters`."""
        exact = {"queue = ?": self.queue, "task = ?": self.task, "reason = ?": self.reason}
        given = {**exact, "dead_at >= ?": self.since, "dead_at < ?": self.until}
        terms = [Term("", sql, (value,)) for sql, value in given.items() if value is not None]
        if self.fingerprint is not None:
            terms.append(Term("", "fingerprint >= ? AND fingerprint < ?", _of_prefix(self.fingerprint)))
        said = self.said.terms()
        if said:
            where, values = joined(said)
            of_jobs = f"(job_id, queue) IN (SELECT id, queue FROM jobs WHERE {where})"  # noqa: S608 - our own columns
            terms.append(Term("", of_jobs, tuple(values)))
        named = (self.queue, self.task, self.fingerprint, self.said.created_by, self.said.owner)
        seen = visible(self.visible_queues, self.visible_tasks)
        if self.jobs is None:
            return [*terms, *of_fleet(*named), *seen]
        # Checked in the job of each dead letter, by its key: dead letters are few among all jobs.
        where, values = self.jobs.where()
        job = f"SELECT 1 FROM jobs WHERE jobs.id = job_id AND jobs.queue = dead_letters.queue AND {where}"  # noqa: S608
        return [*terms, Term("", f"EXISTS ({job})", tuple(values)), *seen]

    @property
    def reads_payloads(self) -> bool:
        """Whether its answer depends on inputs or results, so that the asker needs the right to see these."""
        return self.jobs is not None and self.jobs.reads_payloads

    def sought(self, jobs: JobFilter) -> DeadLetterFilter:
        """Return the filter narrowed to dead letters whose jobs match a search; times of the search are times of death.

        Raises: ProjectionConfigError if both give one field different values.
        """
        causes = () if self.fingerprint is None else (self.fingerprint,)
        both = JobFilter(
            queue=self.queue,
            task=self.task,
            since=self.since,
            until=self.until,
            said=self.said,
            fingerprints=causes,
        ).both(jobs)
        return msgspec.structs.replace(
            self,
            since=both.since,
            until=both.until,
            jobs=msgspec.structs.replace(both, since=None, until=None),
        )

    def where(self) -> tuple[str, list[object]]:
        """Return the condition in SQL, and its values."""
        return joined(self.terms())


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of jobs; None or an empty value sets no condition. Times are of the enqueue, ISO-8601 text in UTC.

    Jobs of the ledger's own queues are left out unless the queue, the task or the jobs are named: see `of_fleet`.
    `parse_search` makes a filter from the text that a person types.

    Raises: ProjectionConfigError for a text or an input field that cannot be searched for.
    """

    states: tuple[str, ...] = ()  #: one of these states
    queue: str | None = None
    task: str | None = None
    since: str | None = None  #: at this time or later
    until: str | None = None  #: before this time
    said: SaidFilter = NOTHING_SAID
    trace_id: str | None = None
    batch: str | None = None
    id_prefix: str | None = None  #: beginning of the job's id
    error_type: str | None = None  #: the error type of the newest failure
    id_suffix: str | None = None  #: end of the job's id
    run: str | None = None  #: id of a run, to choose its children
    awaiting: str | None = None  #: kind of a run's wait, one word
    fingerprints: tuple[str, ...] = ()  #: one of these, or a prefix; only dead letters have a fingerprint
    #: Fields of the input and their values: a name of the outermost object or a JSON pointer; a string, or a JSON
    #: number, `true`, `false` or `null`. An input in the object store is not searched.
    input: tuple[tuple[str, str], ...] = ()
    text: str | None = None  #: text in id, input, result, error message or metadata; ignores the case of a-z
    #: The beginning of ids if any id begins with it (`Store.resolved` checks), otherwise used as `text`.
    words: str | None = None
    members: bool = True  #: include children of runs; if a run is named, its children are always included
    #: Patterns of the queues and tasks that the asker may see, as in a shell (`*`, `?`, `[a-f]`). Empty: all.
    visible_queues: tuple[str, ...] = ()
    visible_tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that cannot be searched for."""
        for text in self._texts():
            if not 0 < len(text) <= _TEXT_LENGTH_MAX:
                raise ProjectionConfigError(
                    f"a text to look for has 1 to {_TEXT_LENGTH_MAX} characters, got {len(text)}"
                )
        try:
            _ = self.terms(), msgspec.json.encode(self)
        except UnicodeEncodeError as error:
            raise ProjectionConfigError(
                "a condition on jobs holds what is no text, half of a character"
            ) from error

    @property
    def reads_payloads(self) -> bool:
        """Whether its answer depends on inputs or results, so that the asker needs the right to see these."""
        return bool(self.input) or bool(self._texts())

    def _texts(self) -> list[str]:
        return [each for each in (self.text, self.words) if each is not None]

    def terms(self) -> list[Term]:
        """Return every condition."""
        exact = {name: getattr(self, name) for name in ("queue", "task", "trace_id", "batch", "error_type")}
        terms = [Term(name, f"{name} = ?", (value,)) for name, value in exact.items() if value is not None]
        if self.states:
            terms.append(Term("states", f"status IN ({', '.join('?' * len(self.states))})", self.states))
        if self.trace_id is not None:
            terms.append(Term("trace_id", "trace_id <> ''"))  # the condition of the partial index
        if self.id_prefix is not None:  # every character that an id can have is below the tilde
            terms.append(Term("id_prefix", "id >= ? AND id < ?", (self.id_prefix, f"{self.id_prefix}~")))
        if self.id_suffix is not None:
            terms.append(Term("id_suffix", "substr(id, ?) = ?", (-len(self.id_suffix), self.id_suffix)))
        if self.run is not None:
            terms.append(Term("run", "parent_id = ?", (self.run,)))
        if self.awaiting is not None:
            found = "instr(' ' || awaiting || ' ', ?)"
            terms.append(Term("awaiting", f"awaiting IS NOT NULL AND {found}", (f" {self.awaiting} ",)))
        if self.fingerprints:
            terms.append(Term("fingerprints", *of_fingerprints(self.fingerprints)))
        return [*terms, *self._times(), *self.said.terms(), *self._looked_for(), *self._seen()]

    def _times(self) -> list[Term]:
        given = {"created_at >= ?": self.since, "created_at < ?": self.until}
        return [Term("created_at", sql, (at,)) for sql, at in given.items() if at is not None]

    def _looked_for(self) -> list[Term]:
        terms = [Term("input", *field_condition("data", field, value)) for field, value in self.input]
        for text in self._texts():
            escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            said = " OR ".join(f"{column} LIKE ? ESCAPE '\\'" for column in _WORDS_OF)
            terms.append(Term("text", f"({said})", (f"%{escaped}%",) * len(_WORDS_OF)))
        return terms

    def _seen(self) -> list[Term]:
        members = [] if self.members or self.run is not None else [Term("members", "parent_id IS NULL")]
        named = (
            self.queue,
            self.task,
            self.trace_id,
            self.batch,
            self.run,
            self.said.created_by,
            self.said.owner,
        )
        fleet = of_fleet(*named, self.id_prefix, self.id_suffix, *self.fingerprints)
        return [*members, *fleet, *visible(self.visible_queues, self.visible_tasks)]

    def where(self) -> tuple[str, list[object]]:
        """Return the condition in SQL, and its values."""
        return joined(self.terms())

    def both(self, other: JobFilter) -> JobFilter:
        """Return the filter of the jobs that match both. Raises: ProjectionConfigError if these differ in a field."""
        return JobFilter(**_all_of_both(self, other))


def _all_of_both(one: msgspec.Struct, other: msgspec.Struct) -> dict[str, Any]:
    return {each: _both(each, getattr(one, each), getattr(other, each)) for each in one.__struct_fields__}


def _both(field: str, one: Any, other: Any) -> Any:
    """Return the value of a field that chooses the jobs which both values choose. Raises: ProjectionConfigError."""
    if isinstance(one, SaidFilter):
        return SaidFilter(**_all_of_both(one, other))
    match field:
        case "members":
            return one and other
        case "metadata" | "input":
            return tuple(dict.fromkeys((*one, *other)))
        case _ if one == other or other in {None, ()}:
            return one
        case _ if one in {None, ()}:
            return other
        case "since" | "until":
            return max(one, other) if field == "since" else min(one, other)
        case "states" if found := tuple(each for each in one if each in other):
            return found
        case "id_prefix" if one.startswith(other) or other.startswith(one):
            return max(one, other, key=len)
        case _:
            pass
    raise ProjectionConfigError(
        f"{field} is given twice, as {_shown(one)} and as {_shown(other)}: leave one of them out"
    )


def _shown(value: str | tuple[str, ...]) -> str:
    return repr((value if isinstance(value, str) else ", ".join(value))[:60])


def of_fingerprints(prefixes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the condition that rows of `jobs` are dead letters of one of these causes, and its values."""
    any_of = " OR ".join(["(fingerprint >= ? AND fingerprint < ?)"] * len(prefixes))
    sql = f"(id, queue) IN (SELECT job_id, queue FROM dead_letters WHERE {any_of})"  # noqa: S608 - our own words
    return sql, tuple(each for prefix in prefixes for each in _of_prefix(prefix))


def joined(terms: Sequence[Term]) -> tuple[str, list[object]]:
    """Return the condition that all terms hold, and its values."""
    return " AND ".join(each.sql for each in terms) or "1", [value for each in terms for value in each.values]


def of_fleet(*named: str | None) -> list[Term]:
    """Return the condition that leaves out `INNER_QUEUES`; none for a `named` filter, which chooses these itself."""
    if any(each is not None for each in named):
        return []
    return [Term("fleet", f"queue NOT IN ({', '.join('?' * len(INNER_QUEUES))})", INNER_QUEUES)]


def visible(queues: tuple[str, ...], tasks: tuple[str, ...]) -> list[Term]:
    """Return the conditions that the columns `queue` and `task` match patterns as in a shell; empty: all."""
    terms: list[Term] = []
    for column, patterns in (("queue", queues), ("task", tasks)):
        if patterns and "*" not in patterns:
            said = " OR ".join([f"{column} GLOB ?"] * len(patterns))
            values = tuple(each.replace("[!", "[^") for each in patterns)
            terms.append(Term(f"visible_{column}s", f"({said})", values))
    return terms


def _of_prefix(fingerprint: str) -> tuple[str, str]:
    return fingerprint, f"{fingerprint}~"  # hex digits are all below the tilde

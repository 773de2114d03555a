"""The form of log lines on stderr: for a person or, with `--log-format json`, one object a line."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from jobledger.cli.streams import LogFormat
from jobledger.cli.text import json_safe, plain, plain_lines
from jobledger.ledger.logs.job_filter import FACTS, JobFilter
from jobledger.ledger.logs.lines import Line, lines_of

_TASKS: Final = "jobledger.task"  #: the name of `Context.logger`
_JOBS: Final = "jobledger.workers.jobs"  #: logger of the life of jobs
_RED, _YELLOW, _DIM, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[0m"
_NOTES: Final = logging.getLogger("jobledger.notes")  #: logger of commands' notes


class _Text(logging.Formatter):
    """`LEVEL: text`; in a long-running process, and with --verbose, also the time and the source."""

    def __init__(self, *, full: bool) -> None:
        super().__init__()
        self.full = full

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        facts = _facts(record)
        if not self.full:
            of_job = (
                f" (job {facts['job']}, attempt {facts['attempt']})"
                if record.name == _TASKS and "job" in facts
                else ""
            )
            return f"{record.levelname}: {record.message}{of_job}"
        words = "".join(f" {name}={value}" for name, value in facts.items())
        return f"{_time(record.created)} {record.levelname}{words} {record.name}: {record.message}"

    def format(self, record: logging.LogRecord) -> str:
        """Return lines in which nothing can steer a terminal."""
        return "\n".join(plain_lines(super().format(record)))

    def each(self, record: logging.LogRecord, lines: Iterable[Line]) -> list[str]:
        """Return the texts of the lines of one record."""
        if not self.full:
            return [f"{record.levelname}: {plain(line.text)}" for line in lines]
        source = f"{record.levelname} {record.name}"
        return [f"{_time(line.at)} {source}: {plain(line.text)}" for line in lines]


class _Terminal(_Text):
    """A line for a terminal: the time of day (UTC), the job, the text; every level but INFO has its own look."""

    def __init__(self, *, colored: bool) -> None:
        super().__init__(full=True)
        self._colored = colored

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        job = _facts(record).get("job")
        of_job = "" if job is None else f"job {job}: "
        return f"{_time_of_day(record.created)} {level}{of_job}{record.message}"

    def format(self, record: logging.LogRecord) -> str:
        """Return lines in which nothing but the colour steers the terminal."""
        return self._in_color(super().format(record), record.levelno)

    def each(self, record: logging.LogRecord, lines: Iterable[Line]) -> list[str]:
        """Return the texts of the lines of one record."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        texts = (f"{_time_of_day(line.at)} {level}{plain(line.text)}" for line in lines)
        return [self._in_color(text, record.levelno) for text in texts]

    def _in_color(self, text: str, level: int) -> str:
        if not self._colored or level == logging.INFO:
            return text
        color = _RED if level >= logging.ERROR else _YELLOW if level >= logging.WARNING else _DIM
        return f"{color}{text}{_PLAIN}"


class _Json(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`, the known fields of `FACTS`, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _object(line)

    def each(self, record: logging.LogRecord, lines: Iterable[Line]) -> list[str]:
        """Return the texts of the lines of one record."""
        level, name = record.levelname.lower(), record.name
        return [
            _object(
                {
                    "time": _time(line.at),
                    "level": level,
                    "logger": name,
                    "message": line.text,
                    **line.fields,
                }
            )
            for line in lines
        ]


def _object(line: dict[str, Any]) -> str:
    import msgspec  # noqa: PLC0415 - most commands log nothing

    return json_safe(msgspec.json.encode(_encodable(line)).decode())


def _encodable(line: dict[str, Any]) -> dict[str, Any]:
    """Replace values that JSON cannot hold: foreign values that a task logged, and lone surrogates."""
    return {
        name: value
        if isinstance(value, int | float)
        else str(value).encode("utf-8", "backslashreplace").decode()
        for name, value in line.items()
    }


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    found = {name: getattr(record, name, "") for name in FACTS}
    return {name: value for name, value in found.items() if value != ""}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _time_of_day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into blocks, each for one write. A pipe keeps PIPE_BUF bytes together when other processes write, too."""
    block, size = "", 0
    for line in lines:
        more = len(line.encode(errors="backslashreplace")) + 1
        if size and size + more > select.PIPE_BUF:
            yield block
            block, size = "", 0
        block, size = f"{block}{line}\n", size + more
    if block:
        yield block


class _ToStderr(logging.Handler):
    """Writes to whatever stderr is at the moment of writing, as a program may redirect it.

    A line that cannot be written is lost, and the program goes on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs = JobFilter()
        self.addFilter(self.jobs)

    def emit(self, record: logging.LogRecord) -> None:
        lines, formatter = lines_of(record), self.formatter
        try:
            if lines is None or not isinstance(formatter, _Text | _Json):
                sys.stderr.write(self.format(record) + "\n")
                return
            for block in _blocks(formatter.each(record, lines)):
                sys.stderr.write(block)
        except Exception:  # noqa: BLE001 - an error in a log line must not reach its caller
            with contextlib.suppress(Exception):
                self.handleError(record)


def set_up_logs(*, verbose: bool, debug: bool, log_format: LogFormat = "text") -> None:
    """Send logs to stderr: warnings and the logs of tasks; with `verbose` also progress, the application's too.

    Our own log lines never hold inputs or passwords.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _ToStderr)]:
        root.removeHandler(handler)
    made = _ToStderr()
    made.setFormatter(_Json() if log_format == "json" else _Text(full=verbose or debug))
    root.addHandler(made)
    root.setLevel(logging.INFO if verbose or debug else logging.WARNING)
    ours = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.getLogger("jobledger").setLevel(ours)
    logging.getLogger(_TASKS).setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger(_JOBS).setLevel(logging.DEBUG if verbose or debug else logging.NOTSET)
    _NOTES.setLevel(logging.INFO)


def log_as_process() -> None:
    """Log as a long-running process: from INFO on, each line with time and source; shorter lines on a terminal."""
    ours = logging.getLogger("jobledger")
    ours.setLevel(min(ours.level, logging.INFO))
    handler = _handler()
    if handler is None or not isinstance(handler.formatter, _Text):
        return
    is_verbose = handler.formatter.full
    is_short = sys.stderr.isatty() and not is_verbose
    colored = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler.setFormatter(_Terminal(colored=colored) if is_short else _Text(full=True))


def log_application(modules: Iterable[str]) -> None:
    """Set the loggers of an application's packages to INFO, unless the application set a level itself.

    `modules`: the modules of its tasks. Lines of tasks are kept for `jobs logs`, and most of these are INFO.
    """
    for name in {module.partition(".")[0] for module in modules} - {"jobledger"}:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)


def name_worker(identity: Callable[[], str]) -> None:
    """Add the worker's identity to every later log line outside of attempts."""
    handler = _handler()
    if handler is not None:
        handler.jobs.worker = identity


def log_format() -> LogFormat:
    """Return the present format of log lines."""
    handler = _handler()
    return "json" if handler is not None and isinstance(handler.formatter, _Json) else "text"


def note(text: str, otherwise: Callable[[str], None]) -> None:
    """Show a note to a person: as a log line with --log-format json, else by `otherwise`."""
    if log_format() == "json":
        _NOTES.info("%s", plain(text))
    else:
        otherwise(text)


def _handler() -> _ToStderr | None:
    return next((each for each in logging.getLogger().handlers if isinstance(each, _ToStderr)), None)

"""Tests in several processes: one collects, forks the others, and tells what they report.

What pytest-xdist does, but for the collection: there each process imports and collects everything, which takes as long as
hundreds of tests. A fork begins with all of that, takes one file after the other, and ends as a session of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pytest
from _pytest.tmpdir import TempPathFactory

_NUMBER_BYTES: Final = 4


class _Message(NamedTuple):
    """What a fork says of a test: that it starts, a report, that it ended; of itself: that it is gone."""

    process_id: int
    kind: str
    said: Any


def run_in_forks(session: pytest.Session, count: int) -> bool:
    """Run the collected tests in `count` processes, each file in one of them; return True, as the hook does."""
    files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
    numbers, write = os.pipe()
    os.write(write, b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in range(len(files))))
    os.close(write)
    config: Any = session.config
    folder = config._tmp_path_factory.getbasetemp()
    messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    reports: dict[int, int] = {}
    for number in range(min(count, len(files))):
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process_id = os.fork()
        if process_id == 0:
            os.close(read)
            _Fork(session, write).run(files, numbers, folder / f"fork-{number}")
            return True
        os.close(write)
        reports[process_id] = read
    for process_id, read in reports.items():
        threading.Thread(target=_listen, args=(process_id, read, messages), daemon=True).start()
    _tell(session, set(reports), messages)
    if os.read(numbers, 1) and not session.shouldfail:
        raise session.Interrupted("the processes that run the tests are gone, and files are left")
    return True


# In the process that collected.


def _listen(process_id: int, read: int, messages: queue.SimpleQueue[_Message]) -> None:
    with os.fdopen(read, encoding="utf-8") as lines:
        for line in lines:
            messages.put(_Message(process_id, *json.loads(line)))
    messages.put(_Message(process_id, "gone", os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])))


def _tell(session: pytest.Session, running: set[int], messages: queue.SimpleQueue[_Message]) -> None:
    """Report what the forks report, until the last of them has ended."""
    config, hook = session.config, session.config.hook
    tests: dict[int, tuple[str, tuple[str, int | None, str]]] = {}
    try:
        while running:
            process_id, kind, said = messages.get()
            match kind:
                case "starts":
                    tests[process_id] = (said[0], tuple(said[1]))
                    hook.pytest_runtest_logstart(nodeid=said[0], location=tuple(said[1]))
                case "ended":
                    del tests[process_id]
                    hook.pytest_runtest_logfinish(nodeid=said[0], location=tuple(said[1]))
                case "report":
                    report = hook.pytest_report_from_serializable(config=config, data=said)
                    if isinstance(report.longrepr, list):  # JSON has no tuples
                        report.longrepr = tuple(cast("list[object]", report.longrepr))
                    hook.pytest_runtest_logreport(report=report)
                case _:
                    running.discard(process_id)
                    if process_id in tests:
                        hook.pytest_runtest_logreport(report=_lost(*tests.pop(process_id), code=said))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    finally:
        for process_id in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGINT)
        while running:
            process_id, kind, _ = messages.get()
            if kind == "gone":
                running.discard(process_id)


def _lost(name: str, location: tuple[str, int | None, str], *, code: int) -> pytest.TestReport:
    what = f"the process that ran it is gone (exit code {code}), and with it what was left of its file"
    return pytest.TestReport(name, location, {}, "failed", what, "call")


# In a fork.


class _Fork:
    """A process that runs files as they come, and reports what becomes of their tests."""

    def __init__(self, session: pytest.Session, reports: int) -> None:
        self._session = session
        self._reports = os.fdopen(reports, "w", encoding="utf-8", buffering=1)

    def run(self, files: list[list[pytest.Item]], numbers: int, folder: Any) -> None:
        """Run files until none is left; temporary folders are made in `folder`."""
        config: Any = self._session.config
        config.workerinput = {}  # by this mark of pytest-xdist, plugins leave caches and summaries to the others
        config._tmp_path_factory = TempPathFactory(
            folder,
            retention_count=config._tmp_path_factory._retention_count,
            retention_policy=config._tmp_path_factory._retention_policy,
            trace=config._tmp_path_factory._trace,
            _ispytest=True,
        )
        config.get_terminal_writer()._file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its file is that of the others
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.register(self)
        items = _next(files, numbers)
        while items:
            item, *items = items
            # Fixtures of a module end with its last test; those of a session go on with the next file.
            items = items or _next(files, numbers)
            config.hook.pytest_runtest_protocol(item=item, nextitem=items[0] if items else None)
            if self._session.shouldfail or self._session.shouldstop:
                return

    def _say(self, kind: str, said: Any) -> None:
        self._reports.write(json.dumps([kind, said]) + "\n")

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._say("starts", [nodeid, location])

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._say("ended", [nodeid, location])

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._say("report", config.hook.pytest_report_to_serializable(config=config, report=report))


def _next(files: list[list[pytest.Item]], numbers: int) -> list[pytest.Item]:
    """Return the tests of the next file, none behind the last."""
    number = os.read(numbers, _NUMBER_BYTES)
    return files[int.from_bytes(number, "big")] if number else []

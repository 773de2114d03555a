"""The modes of limits beside plain waiting: they supersede older jobs, or drop jobs. Pure.

`newest`: of the jobs that wait for a key, only the youngest go on waiting, as many as it has free slots and at least
one. `replace`: the same, and the job with the key's oldest slot is asked to end. `drop`: no job waits for a full key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.limits.holders import Holders, JobKey
from jobledger.ledger.model.limits.lines import Line, LineKey, Lines, WaitingJob
from jobledger.ledger.model.limits.picker import Key, Picker

_SUPERSEDES: Final = frozenset({"newest", "replace"})


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """A decision to cancel a job because of its limit's mode."""

    queue: str
    job: str
    why: Literal["superseded", "dropped"]
    limit: str  #: the key whose mode asks for it
    by: str  #: id of the job that takes its place, or that holds the slot; "" for none
    held: int  #: stream sequence of the `held` of its wait; 0: the job holds a slot, and is asked to end


class DoomedJob(msgspec.Struct, frozen=True, gc=False):
    """A job that waited and is to be cancelled, until its `cancelled` is read."""

    held: int  #: stream sequence of its `held`
    line: LineKey  #: the line in which it waited
    limits: tuple[str, ...]  #: all limits that it names


class Modes:
    """The lines that wait for keys with a mode, and the jobs that are about to be cancelled."""

    def __init__(
        self, picker: Picker, lines: Lines, holders: Holders, remove: Callable[[WaitingJob], None]
    ) -> None:
        """Begin without lines. `remove` takes a job out of its line."""
        self.doomed: dict[JobKey, DoomedJob] = {}
        self.asked: dict[JobKey, None] = {}  #: holders that were asked to end
        self._picker, self._lines, self._holders, self._remove = picker, lines, holders, remove
        self._changed: dict[str, None] = {}  # keys to examine in the next decision
        self._said: list[Cancel] = []
        self.any = False  #: whether any key has a mode; if not, callers need not call `waits`

    def rebuild(self) -> None:
        """Examine every line again, after definitions changed."""
        keys = self._picker.keys
        has_mode = [key for key in keys.values() if key.terms is not None and key.terms.mode != "queue"]
        self.any = bool(has_mode)
        for key in keys.values():
            key.lines.clear()
        if self.any:
            for line in self._lines.lines.values():
                self.add(line)
        self._changed.update(dict.fromkeys(key.name for key in has_mode))

    def add(self, line: Line) -> None:
        """Add a line that has jobs."""
        for key in self._keys_of(line):
            self.any = True
            key.lines[line] = None

    def _keys_of(self, line: Line) -> list[Key]:
        keys = [self._picker.key(name) for name in line.keys]
        return [key for key in keys if key.terms is not None and key.terms.mode != "queue"]

    def leave(self, line: Line) -> None:
        """Forget a line that is empty."""
        if self.any:
            for name in line.keys:
                self._picker.key(name).lines.pop(line, None)

    def waits(self, line: Line) -> None:
        """Note that a job began to wait, or that slots of its line's keys were taken."""
        self._changed.update(dict.fromkeys(key.name for key in self._keys_of(line)))

    def left(self, job: JobKey) -> None:
        """Note that a job stopped waiting, or gave slots back."""
        self.doomed.pop(job, None)
        self.asked.pop(job, None)

    def said(self) -> tuple[Cancel, ...]:
        """Return the decisions since the last call."""
        said = tuple(self._said)
        self._said.clear()
        return said

    def supersede(self, most: int) -> None:
        """Decide to cancel up to `most` jobs that younger ones supersede; leave the others to the next decision."""
        for name in list(self._changed):
            key = self._picker.key(name)
            terms = key.terms
            if terms is None or terms.mode not in _SUPERSEDES or not key.lines:
                continue
            waiting = self._waiting(key)
            older = waiting[: -self._room(name, terms)]
            for entry in older[: max(0, most - len(self._said))]:
                self._doom(entry, "superseded", name, waiting[-1].job)

    def _waiting(self, key: Key) -> list[WaitingJob]:
        return sorted(
            (entry for line in key.lines for entry in self._lines.of(line)), key=lambda each: each.held
        )

    def _room(self, name: str, terms: Terms) -> int:
        """Return how many jobs may go on waiting: as many as can be granted at once, at least one."""
        return 1 if terms.slots is None else max(1, terms.slots - self._holders.used(name))

    def after_grants(self, most: int) -> None:
        """Cancel jobs that must not wait for a full key, and ask holders to end whose place a younger job takes."""
        for name in list(self._changed):
            key = self._picker.key(name)
            terms = key.terms
            if terms is not None and key.lines and self._picker.is_full(key, None):
                if terms.mode == "drop":
                    self._drop(key, most)
                elif terms.mode == "replace":
                    self._ask(key)
            if len(self._said) >= most:
                return
            del self._changed[name]

    def _drop(self, key: Key, most: int) -> None:
        by = next(iter(self._holders.of(key.name)), ("", ""))[1]
        for entry in self._waiting(key)[: max(0, most - len(self._said))]:
            self._doom(entry, "dropped", key.name, by)

    def _ask(self, key: Key) -> None:
        holders = list(self._holders.of(key.name))
        if holders and not any(job in self.asked for job in holders):
            self.asked[holders[0]] = None
            by = self._waiting(key)[-1].job
            self._said.append(Cancel(*holders[0], "superseded", key.name, by, 0))

    def _doom(self, entry: WaitingJob, why: Literal["superseded", "dropped"], limit: str, by: str) -> None:
        line = entry.line
        assert line is not None, "it waits"
        self._remove(entry)
        self.doomed[entry.queue, entry.job] = DoomedJob(entry.held, line.key, entry.limits)
        self._said.append(Cancel(entry.queue, entry.job, why, limit, by, entry.held))

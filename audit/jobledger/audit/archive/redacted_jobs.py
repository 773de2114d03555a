"""Which jobs of an archive are redacted, found in one pass over the archive and the ledger behind it.

An id is free again once all events of its job were archived, so that jobs of several lives may have the same one: a life
begins with an event that follows none. Whether it is chosen is told by that event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from jobledger.ledger.model import codec
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Carried, Held, JobEvent, Order, Queued, Scheduled, order_at_first
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Redacted
from jobledger.ledger.model.redaction import redact, redact_key
from jobledger.ledger.model.subjects import JobRef, Names, aggregate_of
from jobledger.ledger.model.unique import UNIQUE, Taken

#: What may be asked of a job, by its first event.
Word = Literal["queue", "task", "tenant", "correlation", "batch"]
WORDS: Final[tuple[Word, ...]] = get_args(Word)
#: How many jobs a run takes.
JOBS_MAX: Final = 1_000_000


class JobChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that somebody means: those that are named, or those of which all these words are true."""

    named: frozenset[tuple[str, str]] = (
        frozenset()
    )  #: queue and id of each; the queue is "" where any is meant
    where: Mapping[str, str] = {}  #: by one of `WORDS`

    def __post_init__(self) -> None:
        """Refuse a choice of everything, or by unknown words. Raises: InvalidInputError."""
        if unknown := sorted(set(self.where) - set(WORDS)):
            raise InvalidInputError(f"{unknown[0]!r} is no word to choose by: give one of {', '.join(WORDS)}")
        if bool(self.named) == bool(self.where):
            raise InvalidInputError(
                "choose jobs by their names or by words that are true of them, one of both"
            )

    def takes(self, ref: JobRef, task: str, order: Order) -> bool:
        """Return whether a job is meant."""
        if self.named:
            return (ref.queue, ref.job_id) in self.named or ("", ref.job_id) in self.named
        said: dict[Word, str] = {
            "queue": ref.queue,
            "task": task,
            "tenant": order.tenant,
            "correlation": order.correlation,
            "batch": order.batch,
        }
        return all(said[word] == wanted for word in WORDS if (wanted := self.where.get(word)) is not None)


class _Life(msgspec.Struct, gc=False):
    """The events of a job from one beginning on."""

    first: int
    newest: int
    is_chosen: bool
    is_unique: bool


class ChosenJobs:
    """The jobs of a choice, and in which ranges of the archive there is something of them."""

    def __init__(self, choice: JobChoice, names: Names, starts: Sequence[int], through: int) -> None:
        """`starts`: the first stream sequence of each export; `through`: the last one that is archived."""
        self._choice = choice
        self._chain = REACTOR.of_type(names, "redacted", ARCHIVE)
        self._starts = starts
        self._through = through
        self._lives: dict[JobRef, list[_Life]] = {}
        self._with_keys: set[int] = set()  # exports with events of unique keys
        self._touched: set[int] = (
            set()
        )  # exports with events of chosen jobs, and of some that turned out not to be
        self.facts: dict[int, Redacted] = {}  #: by the first sequence of an export, the newest one

    def add(self, batch: Sequence[Message]) -> None:
        """Take the next events in stream order. Raises: InvalidInputError for too many jobs."""
        for message in batch:
            if isinstance(message, StoredEvent):
                self._add_job(message)
            elif message.subject == self._chain:
                event = REACTOR.decode(message)
                assert isinstance(event, Redacted), "its subject names the type"
                self.facts[event.first_sequence] = event
            elif aggregate_of(message.subject) == UNIQUE.name:
                self._with_keys.add(self._export_of(message.stream_sequence))

    def _add_job(self, stored: StoredEvent) -> None:
        event, sequence = stored.event, stored.stream_sequence
        ref = JobRef(queue=event.queue, job_id=event.job)
        lives = self._lives.get(ref)
        if isinstance(event, Carried) and lives is None and self._starts[0] > 1:
            self._begin_before(ref, event, sequence)
        elif not event.prev and isinstance(event, Scheduled | Held | Queued):
            self._begin(ref, event, sequence, lives)
        elif lives is not None:
            lives[-1].newest = sequence
        if (lives or self._lives.get(ref)) and sequence <= self._through:
            self._touched.add(self._export_of(sequence))

    def _begin(self, ref: JobRef, event: JobEvent, sequence: int, lives: list[_Life] | None) -> None:
        order = order_at_first(event)
        is_chosen = self._choice.takes(ref, event.task, order)
        if not is_chosen and lives is None:
            return
        if lives is None:
            if len(self._lives) >= JOBS_MAX:
                raise InvalidInputError(
                    f"these are more than {JOBS_MAX:,} jobs: choose fewer, and run it again for others"
                )
            lives = self._lives[ref] = []
        lives.append(_Life(sequence, sequence, is_chosen, order.unique != ""))

    def _begin_before(self, ref: JobRef, event: Carried, sequence: int) -> None:
        """Take a job that began before the first export: all that is left of it up to this event is of one life.

        Where that lies is not known any more: the run that carried the job was far behind the end of the ledger.
        """
        self._begin(ref, event, sequence, None)
        for life in self._lives.get(ref, ()):
            life.first = self._starts[0]
            self._touched.update(start for start in self._starts if start <= min(sequence, self._through))

    def _export_of(self, sequence: int) -> int:
        return self._starts[max(0, bisect_right(self._starts, sequence) - 1)]

    @property
    def touched(self) -> Collection[int]:
        """The exports, by their first sequences, in which there may be something to redact."""
        chosen = [life for lives in self._lives.values() for life in lives if self._is_redacted(life)]
        if not chosen:
            return ()
        return self._touched | self._with_keys if any(life.is_unique for life in chosen) else self._touched

    @property
    def counts(self) -> tuple[int, int]:
        """How many jobs are redacted, and how many are left since the ledger still has events of theirs."""
        chosen = [life for lives in self._lives.values() for life in lives if life.is_chosen]
        living = sum(life.newest > self._through for life in chosen)
        return len(chosen) - living, living

    def unknown(self) -> list[str]:
        """Return the names of which there is no job."""
        found = {(ref.queue, ref.job_id) for ref in self._lives} | {("", ref.job_id) for ref in self._lives}
        return sorted(f"{queue}/{job}" if queue else job for queue, job in self._choice.named - found)

    def _is_redacted(self, life: _Life | None) -> bool:
        return life is not None and life.is_chosen and life.newest <= self._through

    def redacted(self, message: Message) -> Message:
        """Return an archived event without its values if it is of a chosen job; else, or without any, as it is."""
        if message.redacted:
            return message
        if isinstance(message, StoredEvent):
            event = message.event
            if not self._is_redacted(
                self._life_at(JobRef(queue=event.queue, job_id=event.job), message.stream_sequence)
            ):
                return message
            after = redact(event)
            if after is event:
                return message
            assert isinstance(after, type(event)), "an event keeps its type"
            data = codec.encode(after)
            return msgspec.structs.replace(message, event=after, data=data, redacted=message.hash)
        return self._redacted_key(message) if aggregate_of(message.subject) == UNIQUE.name else message

    def _redacted_key(self, message: Message) -> Message:
        event: Taken = UNIQUE.decode(message)
        if not self._is_redacted(self._life_of_key(event, message.stream_sequence)):
            return message
        after = redact_key(event)
        if after is event:
            return message
        return msgspec.structs.replace(message, data=UNIQUE.encode(after), redacted=message.hash)

    def _life_of_key(self, event: Taken, sequence: int) -> _Life | None:
        """Return the life of the job that took a key: the next one, or if the key was said again, the present one."""
        lives = self._lives.get(JobRef(queue=event.queue, job_id=event.job), [])
        after = next((life for life in lives if life.first > sequence), None)
        return self._last_before(lives, sequence) if event.made or after is None else after

    def _life_at(self, ref: JobRef, sequence: int) -> _Life | None:
        return self._last_before(self._lives.get(ref, []), sequence)

    def _last_before(self, lives: Sequence[_Life], sequence: int) -> _Life | None:
        return next((life for life in reversed(lives) if life.first <= sequence), None)

"""What every aggregate of the ledger has in common: its subjects, its chain, its wire form. Pure.

An aggregate is declared once: its name, the fields that name one of its chains, its events, and what they add up to.
Subjects, chain filters, decoding, linking, schemas, the check of a ledger, the list of events and the archive follow
from that. `aggregates.AGGREGATES` lists them all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args

import msgspec
from msgspec.structs import force_setattr, replace

from jobledger.ledger.model.codec import Message, Unreadable, check_message, decode_message, digest
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import InvalidInputError, MalformedEventError
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.subjects import Names, is_token

E = TypeVar("E", bound=Envelope)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

#: What a ledger is checked for; each name is the rule that a violation breaks.
Rule = Literal[
    "sequence",  # the stream sequence is dense and grows
    "readable",  # every message is an event this version knows, at a time with a zone
    "subject",  # the words of the subject are those of the event
    "chain",  # `prev` is the hash of the event before it in its job
    "transition",  # the event may follow in the state the job is in
    "outcome",  # an attempt has one accepted outcome, and a lost attempt has none
    "epoch",  # every claim of a job is newer than its previous claim
    "attempts",  # no more attempts than the job may have, and only a requeue grants more
    "timer",  # no job is dispatched before its time, or waits long after it
    "tick",  # a schedule ticks at the moments that it names, each once and in their order
    "batch",  # the event that ends an attempt and the one that decides on the job follow each other directly
    "above",  # no grant lets more jobs hold a key of a limit than its definition allows
    "slot",  # a job with limits is queued and started on the slots that its own grant gave it
    "order",  # of the jobs that wait in one line, the one that was held first is granted first
    "rate",  # no more jobs are granted in any time than a rate and its burst allow
    "void",  # a granted job is queued, or has ended its wait
    "step",  # a step has one start and one end, both by the holder of the claim, and its kind never changes
    "child",  # a step of its run had opened each child, with the id, the task and the queue of its item
    "join",  # the end of a child is counted once, as it was recorded; no more children are opened than allowed
    "wake",  # a run is woken once for each wait, by a recorded event, and never waits for one that has come
    "signal",  # a message is recorded once, and taken once by a wait for its name
    "orphan",  # no child is left open by a run that ended, and no end of a child is left uncounted
    "copied",  # a step that a rerun copied equals the step in the run that the rerun names
    "actor",  # what a job does to others for somebody is recorded as done by whoever made that job
    "owner",  # no value of an owner's job is in the clear, and the numbers of an owner's keys grow
    "unique",  # no job takes a key or comes alive while another one holds the key
    "history",  # the ledger begins with the events that an earlier report names
    "archive",  # events missing at the beginning were archived, and unfinished jobs were carried over
    "projection",  # the tables hold what the events add up to
    "export",  # the files of an export match its manifest
    "payload",  # a large input that an event refers to is stored unchanged, and so is each large result that is left
    "seal",  # the ledger has not changed since it was sealed
    "enqueue",  # the ledger has each job whose enqueue was acknowledged, and no other
    "final",  # every job has a final state
    "consumer",  # nothing is left in the consumers of work
]

#: A rule, and one sentence that says how it is broken.
Broken = tuple[Rule, str]

_encode: Final = msgspec.json.Encoder().encode


class Place(Protocol):
    """The end of a chain, on which the next append is conditional."""

    @property
    def last_sequence(self) -> int:
        """The stream sequence of its newest message, readable or not; 0 for none."""
        ...

    @property
    def last_hash(self) -> str:
        """The hex sha256 of its newest event, "" without one."""
        ...


class View(msgspec.Struct, Generic[S_co], frozen=True, gc=False):
    """The state that a chain adds up to, and the place where its next event must follow."""

    state: S_co | None = None  #: None: the chain has no event
    last_sequence: int = 0  #: sequence of its newest message, even if that is no event
    last_data: bytes = b""  #: the newest event as stored

    @property
    def last_hash(self) -> str:
        """What the next event's `prev` must be."""
        return digest(self.last_data) if self.last_data else ""


class ArchiveBound(msgspec.Struct, frozen=True):
    """The limit that a chain sets to an archive run."""

    from_sequence: int  #: the first stream sequence that must stay
    why: str  #: the thing that must stay, as the subject of a sentence
    while_lives: str = ""  #: the bound holds while the lease of this process lives; "": always
    until: datetime | None = None  #: the bound holds up to this moment; None: always


class Aggregate(Generic[E, S]):
    """One kind of chain. Each event holds the whole state, unless `evolve` needs the state before."""

    def __init__(
        self,
        name: str,
        key: tuple[str, ...],
        union: Any,
        *,
        state: type[S],
        evolve: Callable[[S | None, E, int], S],
        words: Callable[[E], str],
        check: Callable[[S | None, E, int], Iterator[Broken]] | None = None,
        keeps: Callable[[E, int], ArchiveBound | None] | None = None,
        keeps_of: tuple[str, ...] = (),
        removed: type[E] | tuple[type[E], ...] | None = None,
        restated: bool = False,
        again: Callable[[E, int], E] | None = None,
        leaf: Callable[[E], str] | None = None,
    ) -> None:
        """Declare the aggregate.

        `key`: the fields of its events that name one chain, in the order of the subject.
        `union`: its events, `A | B | ...`.
        `state`: what they add up to, a class that msgspec can write and read.
        `evolve`: state before (None: unknown or none), event, its stream sequence -> state after. It accepts every
        event.
        `words`: event -> its content beyond its type, for a person.
        `check`: state before, event, stream sequence -> each rule that the event breaks, and how.
        `keeps`: the newest event of a chain and its sequence -> the bound of an archive run; None: no bound. Without
        `keeps` the newest event of every chain stays.
        `keeps_of`: the types of event for which `keeps` is called, with the newest event of each; empty: with the
        newest of any type.
        `removed`: declares that people set and remove it, and that each event holds the whole state and may follow
            itself. So an archive run appends the newest one again instead of keeping it, unless it has (one of) this
            type.
        `restated`: the same for an aggregate that nobody removes.
        `again`: the newest event and its sequence -> the event that is appended again; without `again` it is the same
        event.
        `leaf`: the last words of an event's subject, if these are more than its type.
        """
        self.name = name
        self.key = key
        classes: tuple[type[E], ...] = get_args(union) or (union,)
        self.types: Mapping[str, type[E]] = {str(cls.__struct_config__.tag): cls for cls in classes}
        self.state = state
        self.evolve = evolve
        self.words = words
        self.check = check
        self._tags = {cls: tag for tag, cls in self.types.items()}
        self.keeps_of = keeps_of
        self.restated = restated or removed is not None
        self._removed = removed
        self._again = again
        self._keeps = keeps
        self._leaf = leaf
        self._union = union

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[E]:
        """Build the decoder at the first event: this takes a millisecond, and most processes read few aggregates."""
        return msgspec.json.Decoder(self._union)

    def type_of(self, event: E) -> str:
        """Return the event's tag as written on the wire."""
        return self._tags[type(event)]

    def key_of(self, event: E) -> tuple[str, ...]:
        """Return the words that name the event's chain."""
        return tuple(str(getattr(event, field)) for field in self.key)

    def key_in(self, subject: str) -> tuple[str, ...]:
        """Return the words of a stored subject that name its chain."""
        return tuple(subject.split(".")[2 : 2 + len(self.key)])

    def label(self, key: tuple[str, ...]) -> str:
        """Return what a person calls a chain: `lock account/42`."""
        return f"{self.name} {'/'.join(key)}"

    def chain(self, names: Names, *key: str) -> str:
        """Return the filter of one chain: the same string for every append to that chain."""
        return ".".join((names.ledger_root, self.name, *key, ">"))

    def everything(self, names: Names) -> str:
        """Return the filter of all chains."""
        return f"{names.ledger_root}.{self.name}.>"

    def of_type(self, names: Names, tag: str, *key: str) -> str:
        """Return the subject of one chain's events of a type; without a key, a filter for those of every chain."""
        return ".".join((names.ledger_root, self.name, *(key or ("*",) * len(self.key)), tag))

    def subject(self, names: Names, event: E) -> str:
        """Return the subject under which `event` is stored."""
        return self.of_type(names, self._leaf_of(event), *self.key_of(event))

    def _leaf_of(self, event: E) -> str:
        return self.type_of(event) if self._leaf is None else self._leaf(event)

    def is_at(self, subject: str, event: E) -> bool:
        """Return whether a stored subject fits the event, in any environment."""
        key = self.key_of(event)
        place = ".".join((self.name, *key, self._leaf_of(event)))
        return subject.partition(".")[2] == place and all(map(is_token, key))

    def decode(self, message: Message) -> E:
        """Return the event in a message of one of its chains.

        Raises: UnknownEventError for an event of a newer version, MalformedEventError for anything else.
        """
        if isinstance(message, Unreadable):
            sequence = message.stream_sequence
            raise MalformedEventError(message.why, stream_sequence=sequence, next_sequence=sequence + 1)
        return decode_message(self._decoder, message, f"{self.name} event", self.types)

    def view(self, newest: Message | None, last_sequence: int = 0) -> View[S]:
        """Return the view from the newest event of a chain alone, for aggregates whose events hold the whole state.

        `last_sequence`: the sequence of the chain's newest message, if that is no event; see `log.end_of_chain`.
        """
        if newest is None:
            return View(last_sequence=last_sequence)
        sequence = newest.stream_sequence
        state = self.evolve(None, self.decode(newest), sequence)
        return View(state, max(sequence, last_sequence), newest.data)

    def chain_of(self, names: Names, event: E) -> str:
        """Return the filter of the chain that `event` belongs to."""
        return self.chain(names, *self.key_of(event))

    def encode(self, event: E) -> bytes:
        """Return the bytes of `event` as they will be stored.

        Raises: InvalidInputError for an event that no reader could read again.
        """
        try:
            data = _encode(event)
            check_message(self._decoder, data)
        except (TypeError, OverflowError, UnicodeError, msgspec.MsgspecError) as error:
            message = f"a value of the event for {self.label(self.key_of(event))} cannot be recorded: {error}"
            raise InvalidInputError(message) from error
        return data

    def link(self, names: Names, events: Sequence[E], place: Place) -> tuple[Entry, ...]:
        """Link fresh events to their chain and to each other, ready to append if nothing was appended meanwhile.

        The first entry carries the condition. The events are linked in place, since nobody else has them yet.
        """
        first, chain = events[0], self.chain_of(names, events[0])
        if len(events) == 1:  # the same as below, but faster: every job comes here twice
            force_setattr(first, "prev", place.last_hash)
            return (Entry(self.subject(names, first), self.encode(first), chain, place.last_sequence),)
        expected: int | None = place.last_sequence
        previous = place.last_hash
        entries: list[Entry] = []
        for event in events:
            if entries:
                expected, previous = None, digest(entries[-1].data)
            force_setattr(event, "prev", previous)
            entries.append(Entry(self.subject(names, event), self.encode(event), chain, expected))
        return tuple(entries)

    def advance(self, entry: Entry, event: E, stream_sequence: int, before: S | None = None) -> View[S]:
        """Return the view after a linked event was accepted; `before` is the state that it was decided on."""
        return View(self.evolve(before, event, stream_sequence), stream_sequence, entry.data)

    def said_again(self, newest: Message) -> E:
        """Return the event by which an archive run repeats the newest event of a chain."""
        event = self.decode(newest)
        event = event if self._again is None else self._again(event, newest.stream_sequence)
        return replace(event, prev="")

    def kept(self, newest: Message) -> ArchiveBound | None:
        """Return the bound of an archive run by a chain with this newest message."""
        sequence = newest.stream_sequence
        if self._removed is not None and isinstance(self.decode(newest), self._removed):
            return None
        if self._keeps is not None:
            return self._keeps(self.decode(newest), sequence)
        return ArchiveBound(
            sequence, f"{self.label(self.key_in(newest.subject))}, whose newest event is at {sequence}"
        )

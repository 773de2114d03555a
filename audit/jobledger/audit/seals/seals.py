"""Seals: one signed number over a range of the ledger, by which its keeper can tell that nothing was changed since.

A hash chain shows damage inside a job's history; it does not show that a whole job or the newest events of all are
gone, or that somebody with access to the store wrote another history. A seal does, once it is kept elsewhere. The seals
are events of the chain `ledger.reactor.seals`, each range begins where the one before ended, and each names the root of
the one before, so the newest one vouches for all.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.seals.keys import Signer, TrustedKeys
from jobledger.ledger.files import open_file
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError, MalformedEventError
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.reactor import REACTOR, SEALS, SealRecorded
from jobledger.ledger.model.subjects import Names

# The root of a Merkle tree over a stream of leaves, in memory that grows with the logarithm of their number. Pure.
# The tree is that of Certificate Transparency, so any implementation of it agrees: a leaf is
# `sha256(0x00 || value)`, a node `sha256(0x01 || left || right)`, and a tree of n leaves has its left part as large as
# the greatest power of two below n. Source: RFC 9162, section 2.1.1.

_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"


class MerkleTree:
    """Takes leaves in order; `root` may be asked for at any time."""

    def __init__(self) -> None:
        self._peaks: list[bytes] = []  # roots of whole subtrees, the largest first
        self.count = 0  #: leaves so far

    def add(self, value: bytes) -> None:
        """Take the next leaf."""
        node = hashlib.sha256(_LEAF + value).digest()
        self.count += 1
        full = self.count
        while not full & 1:  # each zero at the end of the binary count completes a subtree
            node = hashlib.sha256(_NODE + self._peaks.pop() + node).digest()
            full >>= 1
        self._peaks.append(node)

    def root(self) -> bytes:
        """Return the root's 32 bytes; without leaves the hash of nothing."""
        if not self._peaks:
            return hashlib.sha256().digest()
        node = self._peaks[-1]
        for left in reversed(self._peaks[:-1]):
            node = hashlib.sha256(_NODE + left + node).digest()
        return node


#: More events than this are sealed in several ranges, so that each can be checked alone.
SEAL_EVENTS_MAX: Final = 100_000
_PUBLISHED_BYTES_MAX: Final = 64 << 20  # about 100,000 seals: two months of one a minute
_RETRIES_LOOKED_AT: Final = 10


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """A seal as it is published: the event, where it is stored, and whose ledger it is of."""

    environment: str
    stream_sequence: int
    seal: SealRecorded

    def line(self) -> str:
        """Return the seal as one line of JSON, to be kept where no writer of the ledger's store can write."""
        return msgspec.json.encode(self).decode()


def signed_text(seal: SealRecorded, environment: str) -> bytes:
    """Return the text that is signed: a line for each field, so that any language can write it again."""
    said = (
        "jobledger seal 1",
        environment,
        seal.from_sequence,
        seal.to_sequence,
        seal.merkle_root,
        seal.head_hash,
        seal.previous_root,
        _written(seal.at),
        seal.by,
        seal.key,
    )
    return "".join(f"{each}\n" for each in said).encode()


def _written(at: datetime) -> str:
    try:
        return at.astimezone(UTC).isoformat(timespec="microseconds")
    except OverflowError:  # no sealer writes such a time: the check of the signature fails then
        return at.isoformat()


async def newest_seal(log: Log) -> Seal | None:
    """Return the seal that was recorded last, None if there is none.

    Raises: MalformedEventError, UnknownEventError, UnreachableError.
    """
    return _seal_of((await end_of_chain(log, REACTOR.chain(log.names, SEALS))).event, log.names)


def _seal_of(message: Message | None, names: Names) -> Seal | None:
    if message is None:
        return None
    event = REACTOR.decode(message)
    if not isinstance(event, SealRecorded):
        sequence = message.stream_sequence
        raise MalformedEventError(
            f"stream sequence {sequence} is in the chain of seals and is none",
            stream_sequence=sequence,
            next_sequence=sequence + 1,
        )
    return Seal(environment=names.environment, stream_sequence=message.stream_sequence, seal=event)


async def each_seal(log: Log) -> AsyncGenerator[Seal, None]:
    """Yield every seal in the ledger, oldest first.

    Raises: CorruptLedgerError, UnreachableError.
    """
    batches = log.read_messages(subject=REACTOR.chain(log.names, SEALS))
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                seal = _seal_of(message, log.names)
                assert seal is not None, "there is a message"
                yield seal


async def read_seals(log: Log) -> list[Seal]:
    """Return every seal in the ledger, oldest first; some 700 bytes of memory each. Raises: as `each_seal`."""
    return [seal async for seal in each_seal(log)]


async def seal_next(
    log: Log, signer: Signer, *, by: str, at: datetime, events_max: int = SEAL_EVENTS_MAX
) -> Seal | None:
    """Seal what follows the newest seal, up to the head as it is now or `events_max` events; None if there is nothing.

    A range of seals alone is not sealed, so that an idle ledger does not grow. Memory does not grow with the range.

    Raises: WrongSequenceError when somebody else sealed meanwhile; CorruptLedgerError, UnreachableError,
        LedgerFullError.
    """
    chain = REACTOR.chain(log.names, SEALS)
    last = await end_of_chain(log, chain)
    before = _seal_of(last.event, log.names)
    head = await log.head()
    begin = before.seal.to_sequence + 1 if before is not None else head.first_sequence
    if head.last_sequence < begin:
        return None
    span = await _read_span(log, begin, min(head.last_sequence, begin + events_max - 1))
    if not span.worth_it:
        return None
    draft = SealRecorded(
        reactor=SEALS,
        at=at,
        by=by,
        from_sequence=begin,
        to_sequence=span.reached,
        merkle_root=span.tree.root().hex(),
        head_hash=span.head_hash,
        previous_root=before.seal.merkle_root if before is not None else "",
        key=signer.key_id,
        signature="",
        prev=last.event.hash if last.event is not None else "",
    )
    signature = signer.sign(signed_text(draft, log.names.environment))
    event = msgspec.structs.replace(draft, signature=signature)
    entry = REACTOR.link(log.names, [event], REACTOR.view(*last))[0]
    sequence = await log.append([entry])
    return Seal(environment=log.names.environment, stream_sequence=sequence, seal=event)


class _Span:
    """The contents of a seal over a range, as far as it was read."""

    def __init__(self, own: str) -> None:
        """`own`: the beginning of the subjects of seals."""
        self._own = own
        self.tree = MerkleTree()
        self.reached = 0
        self.head_hash = ""
        self.worth_it = False  # whether anything but seals is in it

    def add(self, message: Message) -> None:
        digest = message.sha256
        self.tree.add(digest)
        self.reached = message.stream_sequence
        self.head_hash = digest.hex()
        self.worth_it = self.worth_it or not message.subject.startswith(self._own)


async def _read_span(log: Log, first: int, last: int) -> _Span:
    span = _Span(REACTOR.chain(log.names, SEALS).removesuffix(">"))
    batches = log.read_messages(from_sequence=first)
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in batch:
                if message.stream_sequence > last:
                    return span
                span.add(message)
            if span.reached >= last:
                return span
    return span


class SealCheck:
    """Compares the events of a ledger, fed in stream order, with seals over them.

    A seal that begins before the first event fed is not compared: it counts as neither right nor wrong.
    """

    def __init__(
        self,
        seals: Sequence[Seal],
        names: Names,
        *,
        from_sequence: int = 1,
        trusted: TrustedKeys | None = None,
        whole: bool = True,
    ) -> None:
        """`trusted` are the keys that count; None leaves signatures unchecked.

        `whole`: each seal must go on where the one before ended, as in the ledger; of published ones some may be left out.
        """
        self._names = names
        self._trusted = trusted
        self._problems = list(self._check_seals(seals, whole=whole))
        self._waiting = _apart(seals, from_sequence)
        self.before = sum(each.seal.from_sequence < from_sequence for each in seals)  #: seals not compared
        self._current = next(self._waiting, None)
        self._tree = MerkleTree()
        self.agreed: list[Seal] = []  #: seals that the events agree with, in the order of their ranges

    @property
    def agreeing(self) -> int:
        """How many seals the events agree with."""
        return len(self.agreed)

    @property
    def sealed_through(self) -> int:
        """The newest stream sequence under such a seal; 0 without any."""
        return self.agreed[-1].seal.to_sequence if self.agreed else 0

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the seals that the events agree with."""
        for each in self.agreed:
            yield each.seal.from_sequence, each.seal.to_sequence

    def problems(self) -> Sequence[tuple[int, str]]:
        """Return what is wrong with the seals alone, without the events: stream sequence and sentence."""
        return self._problems

    def _check_seals(self, seals: Sequence[Seal], *, whole: bool) -> Iterator[tuple[int, str]]:
        before: Seal | None = None
        for each in seals:
            yield from self._check_words(each)
            if before is not None:
                yield from _check_link(before, each, whole=whole)
            before = each

    def _check_words(self, each: Seal) -> Iterator[tuple[int, str]]:
        seal, sequence = each.seal, each.stream_sequence
        if each.environment != self._names.environment:
            yield sequence, f"{_name(each)} is of environment {each.environment!r}, another ledger"
        if not 1 <= seal.from_sequence <= seal.to_sequence < sequence:
            yield sequence, f"{_name(each)} cannot be over that range and stored at {sequence}"
        if self._trusted is None:
            return
        if seal.key not in self._trusted:
            yield (
                sequence,
                f"{_name(each)} is by the key {seal.key[:16]}, which is not among the trusted ones",
            )
        elif not self._trusted.signed(seal.key, seal.signature, signed_text(seal, each.environment)):
            yield sequence, f"the signature of {_name(each)} is not that of its key"

    def feed(self, stream_sequence: int, digest: bytes) -> Iterator[tuple[int, str]]:
        """Take the sha256 of the next event; yield what is wrong with the seals that end at it or before it."""
        while self._current is not None and stream_sequence >= self._current.seal.from_sequence:
            seal = self._current.seal
            if stream_sequence <= seal.to_sequence:
                self._tree.add(digest)
            if stream_sequence < seal.to_sequence:
                return
            # An event beyond the seal's end means that the events at its end are missing; then the root differs, too.
            if self._tree.root().hex() == seal.merkle_root and digest.hex() == seal.head_hash:
                self.agreed.append(self._current)
            else:
                yield seal.from_sequence, _changed(self._current)
            self._current, self._tree = next(self._waiting, None), MerkleTree()

    def finish(self, head_sequence: int) -> Iterator[tuple[int, str]]:
        """Yield what the ledger lacks at its end: events that were sealed and are not there."""
        for each in (self._current, *self._waiting):
            if each is not None and each.seal.to_sequence > head_sequence:
                ends = (
                    f"the ledger ends at {head_sequence}, and {_name(each)} goes to {each.seal.to_sequence}"
                )
                yield head_sequence + 1, f"{ends}: its newest events were cut off"
                return


def _apart(seals: Sequence[Seal], from_sequence: int) -> Iterator[Seal]:
    """Yield the seals whose ranges follow each other and can be read whole."""
    reached = from_sequence - 1
    for each in seals:
        if reached < each.seal.from_sequence <= each.seal.to_sequence:
            reached = each.seal.to_sequence
            yield each


def _check_link(before: Seal, each: Seal, *, whole: bool) -> Iterator[tuple[int, str]]:
    follows = each.seal.from_sequence == before.seal.to_sequence + 1
    if each.seal.from_sequence <= before.seal.to_sequence:
        yield (
            each.stream_sequence,
            f"{_name(each)} and {_name(before)} overlap: the ledger was made again between them",
        )
    elif whole and not follows:
        yield each.stream_sequence, f"{_name(each)} does not begin where {_name(before)} ends"
    elif follows and each.seal.previous_root != before.seal.merkle_root:
        yield each.stream_sequence, f"{_name(each)} names another seal before it than {_name(before)}"


def _changed(each: Seal) -> str:
    seal = each.seal
    return (
        f"stream sequence {seal.from_sequence} to {seal.to_sequence} is not what it was when it was sealed: "
        "something in it was changed, added or lost"
    )


def _name(each: Seal) -> str:
    return f"the seal over {each.seal.from_sequence} to {each.seal.to_sequence}"


def read_published(path: Path, *, begun: bool = True) -> list[Seal]:
    """Read published seals, one a line, the oldest first; of equal ones one is kept.

    A line that broke off and was written again after it is passed over. `begun=False`: seals
    will be added to the file, which may be missing or empty, or end with a broken line.

    Raises: ConfigurationError for a file that cannot be read or has none, InvalidInputError for what is no seal.
    """
    lines = _published_lines(path, begun=begun)
    found: dict[str, Seal] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            seal = msgspec.json.decode(line, type=Seal)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if any(each.startswith(line) for each in lines[number : number + _RETRIES_LOOKED_AT]):
                continue
            if not begun and number == len(lines):
                continue
            raise InvalidInputError(f"line {number} of {path} is not a published seal: {error}") from error
        found[seal.line()] = seal  # not by its range: two different seals over one range reveal a forgery
    if begun and not found:
        raise ConfigurationError(f"{path} holds no seal: write some with `jobledger audit seals --json`")
    return sorted(found.values(), key=lambda each: (each.seal.to_sequence, each.stream_sequence))


def _published_lines(path: Path, *, begun: bool) -> list[bytes]:
    try:
        with open_file(path) as file:
            data = file.read(_PUBLISHED_BYTES_MAX + 1)
    except OSError as error:
        if not begun and isinstance(error, FileNotFoundError):
            return []
        raise ConfigurationError(f"the seals in {path} cannot be read: {error.strerror}") from error
    if len(data) > _PUBLISHED_BYTES_MAX:
        raise ConfigurationError(
            f"{path} holds more than {_PUBLISHED_BYTES_MAX >> 20} MiB: give its newest lines alone, in a file of "
            "their own, since each seal vouches for those before it"
        )
    return data.splitlines()


def newest_of(seals: Iterable[Seal]) -> Seal:
    """Return the seal that reaches furthest; there is one."""
    return max(seals, key=lambda each: each.seal.to_sequence)

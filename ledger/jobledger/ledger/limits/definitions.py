"""Writing of definitions of limits to the ledger: by a person (`set_limit`) and by code (`CodeLimits`).

Every append is conditional on the newest event of the limit's chain, and a decision on an older event is made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple, Protocol

from jobledger.ledger.access.current_authority import ACTING_FOR, acting_for
from jobledger.ledger.limits.declarations import Limit
from jobledger.ledger.limits.in_code import difference
from jobledger.ledger.limits.keys import own_key
from jobledger.ledger.model import named_chain
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.decision_parts.permissions import permit_limit
from jobledger.ledger.model.errors import (
    ConfigurationError,
    CorruptLedgerError,
    RefusedError,
    UnreachableError,
)
from jobledger.ledger.model.limits.definition import (
    LIMIT,
    Definition,
    LimitCommand,
    LimitEvent,
    SetKey,
    SetLimit,
    Terms,
    decide,
    override_of,
    terms_words,
)
from jobledger.ledger.model.limits.names import UNNAMED, joined, split
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import ChangedValue, look

logger = logging.getLogger(__name__)

#: The longest wait of an enqueue for the definition of its limits; then it goes on without, and logs that.
_WAIT_S: Final = 2.0
#: After a failure, enqueues make no other try for this long.
_PAUSE_S: Final = 10.0
#: How long an enqueue of a job that names a limit may use the definition that was read before.
_GOOD_FOR_S: Final = 2.0
_KNOWN_MAX: Final = 1_000


async def change(
    log: Log,
    limit: str,
    wish: Callable[[Definition | None], LimitCommand | None],
    stamp: Callable[[], Stamp],
    *,
    plan: bool = False,
) -> ChangedValue[Definition]:
    """Append the event for the command that `wish` returns for the present limit; for None append nothing.

    `plan`: append nothing, and return what the change would be.

    Raises: as `wish`, `definition.decide` and `Log`; WrongSequenceError after too many lost races.
    """

    def decided(before: Definition | None, now: Stamp) -> LimitEvent | None:
        command = wish(before)
        return None if command is None else decide(limit, before, command, now)

    return await named_chain.change(log, LIMIT, limit, decided, stamp, plan=plan)


async def define_key(log: Log, limit: str, key: str, terms: Terms, stamp: Callable[[], Stamp]) -> None:
    """Define one key of a limit in the name of code: terms that a person set for that key stay.

    Raises: WrongSequenceError after too many lost races, and as `Log`.
    """
    await change(log, limit, lambda before: _wish(before, key, terms), stamp)


class LimitOptions(Protocol):
    """The options of a job that concern its limits; see `Options`."""

    @property
    def queue(self) -> str:
        """The queue of the job."""
        ...

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits by their names."""
        ...

    @property
    def limits_in_code(self) -> tuple[Limit | str, ...]:
        """Limits that code declares."""
        ...


class _KnownLimit(NamedTuple):
    """A limit as it was read a moment ago."""

    definition: Definition | None
    until: float  #: end of its validity, by the loop's clock


class CodeLimits:
    """The limits that jobs of one client name: writes those that code defines, and checks that a job may name them.

    A definition that was read is used for a moment, so that few enqueues ask the server for it.
    """

    def __init__(self, log: Log, stamp: Callable[[], Stamp]) -> None:
        self._log = log
        self._stamp = stamp
        self._looks = asyncio.Lock()  #: many enqueues begin at once, and one of them reads
        self._known: dict[str, _KnownLimit] = {}  #: definitions by name, which say who may name a limit
        self._turn = asyncio.Lock()  #: many enqueues begin at once, and one of them writes
        self._said: dict[
            str, Terms
        ] = {}  #: by limit or limit:key: terms of the code that are written, or that a person's terms replace
        self._failed: dict[str, float] = {}  #: time of a failed write or read of a limit, by the loop's clock

    async def ensure(
        self, options: LimitOptions, task: str, own: Container[str], *, plan: bool = False
    ) -> None:
        """Write the limits that a job's task and queue define to the ledger, as far as that is possible at once.

        `own`: limits that the task's code only names. `plan`: only check whether the job may name its limits.

        Raises: ConfigurationError if this process defined a limit otherwise before; as `require`.
        """
        in_code = options.limits_in_code
        for limit in () if plan else in_code:
            if isinstance(limit, Limit) and not self._is_said(limit, task, options.queue):
                await self._say(limit, task, options.queue)
        job = (options.queue, task)
        await self.require(options.limits, job, own)
        declared = tuple(each if isinstance(each, str) else each.name for each in in_code)
        await self.require(declared, job, declared)

    async def require(self, limits: Iterable[str], job: tuple[str, str], own: Container[str]) -> None:
        """Refuse limits that a job must not name. `job`: its queue and task; `own`: limits in the task's code.

        Raises: AccessDeniedError, UnreachableError, UnknownEventError.
        """
        for limit in limits:
            name = split(limit)[0]
            if name not in UNNAMED:
                known = self._known.get(name)
                if known is None or known.until < asyncio.get_running_loop().time():
                    known = await self._read(name)
                permit_limit(ACTING_FOR.get(), limit, known.definition, job, is_own=limit in own)

    async def _read(self, name: str) -> _KnownLimit:
        """Return the present limit; if it cannot be read, an operator's own program gets the last known one.

        Raises: UnreachableError, RefusedError, UnknownEventError.
        """
        is_operator, now = ACTING_FOR.get() is None, asyncio.get_running_loop().time()
        known = self._known.get(name)
        if is_operator and self._has_failed(name):
            return known or _KnownLimit(None, now)
        try:
            async with asyncio.timeout(_WAIT_S), self._looks:
                known = self._known.get(name)
                if known is None or known.until < now:
                    known = self._keep(name, (await look(self._log, LIMIT, name)).state)
                return known
        except (UnreachableError, RefusedError, CorruptLedgerError, TimeoutError) as error:
            if not is_operator:
                if isinstance(error, TimeoutError):
                    raise UnreachableError(f"limit {name} could not be read within {_WAIT_S:g} s") from error
                raise
            self._fail(name, error, "could not be read, and its jobs are enqueued as far as it is known")
            return known or _KnownLimit(None, now)

    def _keep(self, name: str, definition: Definition | None) -> _KnownLimit:
        if len(self._known) >= _KNOWN_MAX:  # callers choose the names, so their number must be bounded
            self._known.clear()
        known = _KnownLimit(definition, asyncio.get_running_loop().time() + _GOOD_FOR_S)
        self._known[name] = known
        return known

    def _has_failed(self, name: str) -> bool:
        """Return whether enqueues go on without another try for now."""
        failed = self._failed.get(name)
        return failed is not None and asyncio.get_running_loop().time() < failed + _PAUSE_S

    def _fail(self, name: str, error: Exception, what: str) -> None:
        self._failed[name] = asyncio.get_running_loop().time()
        why = str(error) or f"the server gave no answer within {_WAIT_S:g} s"
        logger.warning("limit %s %s; an enqueue in %g s or later tries again: %s", name, what, _PAUSE_S, why)

    def forget(self, name: str) -> None:
        """Read a limit again before the next job that names it."""
        self._known.pop(name, None)

    def _is_said(self, limit: Limit, task: str, queue: str) -> bool:
        """Return whether there is nothing to write for a limit now.

        Raises: ConfigurationError if this process defined it otherwise before.
        """
        if not limit.is_defined:
            return True
        name = joined(limit.name, own_key(limit, task, queue))
        said = self._said.get(name)
        if said is None:
            return self._has_failed(name)
        if said != limit.terms:
            raise ConfigurationError(
                f"limit {name} is defined twice in this process, and not with the same numbers "
                f"({terms_words(said)}; {terms_words(limit.terms)}): define it once, and use that object everywhere"
            )
        return True

    async def _say(self, limit: Limit, task: str, queue: str) -> None:
        """Write a definition unless the ledger has the same one, or one of a person; log a failure.

        Jobs of a limit that could not be written stay held until a later enqueue, or a person, sets it.
        """
        key, wanted = own_key(limit, task, queue), limit.terms
        name = joined(limit.name, key)
        try:
            async with asyncio.timeout(_WAIT_S), self._turn:
                if self._is_said(limit, task, queue):
                    return
                with acting_for(None):  # the code is the author, not the principal who enqueues
                    found = await change(
                        self._log, limit.name, lambda before: _wish(before, key, wanted), self._stamp
                    )
                self._said[name] = wanted
                self._keep(limit.name, found.state)
                differs = difference(found.state, name, wanted)
                if differs:
                    logger.warning("%s", differs)
        except (UnreachableError, RefusedError, CorruptLedgerError, TimeoutError) as error:
            what = "could not be set as the code has it, and its jobs stay held while nothing defines it"
            self._fail(name, error, what)


def _wish(before: Definition | None, key: str, wanted: Terms) -> LimitCommand | None:
    """Return the command that defines a limit by the code's terms; None if nothing has to change, or may change."""
    if not key:
        by_person = before is not None and before.is_set and before.source == "operator"
        is_said = before is not None and before.common == wanted
        return None if by_person or is_said else SetLimit(terms=wanted, source="code")
    # All queues (or tasks) share the name of this limit, and each has its terms under its own key.
    own = override_of(wanted)
    if before is not None and key in before.overrides:
        stays = before.author(key).source == "operator" or before.overrides[key] == own
        if stays:
            return None
    return SetKey(key=key, override=own, source="code")

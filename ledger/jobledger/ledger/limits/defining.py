"""Who writes definitions of limits to the ledger: a person through `set_limit`, the application's code through `CodeLimits`.

Every append is conditional on the newest event of the limit's chain, and what was decided on an older one is decided
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.limits.declared import Limit
from jobledger.ledger.limits.in_code import difference
from jobledger.ledger.limits.keys import own_key
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.commands import Stamp
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
    Override,
    SetKey,
    SetLimit,
    Terms,
    decide,
    evolve,
    terms_words,
)
from jobledger.ledger.model.limits.names import joined
from jobledger.ledger.model.log import Log, end_of_chain

logger = logging.getLogger(__name__)

#: What an enqueue waits at the most for the definition of its limits; it goes on without, and says so.
_WAIT_S: Final = 2.0
#: After a failure, how long enqueues go on without another try.
_PAUSE_S: Final = 10.0


async def look(log: Log, limit: str) -> View[Definition]:
    """Return a limit as it is now; without a state where it was never set.

    Raises: UnreachableError, UnknownEventError.
    """
    return LIMIT.view(*await end_of_chain(log, LIMIT.chain(log.names, limit)))


class Changed(NamedTuple):
    """A limit before and after a change; None: nothing was ever said of it."""

    before: Definition | None
    after: Definition | None


async def change(
    log: Log,
    limit: str,
    wish: Callable[[Definition | None], LimitCommand | None],
    stamp: Callable[[], Stamp],
    *,
    plan: bool = False,
) -> Changed:
    """Append what follows from `wish`, which is asked what it wants of the limit as it is now; None: nothing.

    `plan`: append nothing, and say what would come of it.

    Raises: what `wish` and `definition.decide` raise, WrongSequenceError after too many lost races, and what `Log`
        raises.
    """

    async def attempt() -> Changed:
        view = await look(log, limit)
        command = wish(view.state)
        if command is None:
            return Changed(view.state, view.state)
        event = decide(limit, view.state, command, stamp())
        if plan:
            return Changed(view.state, evolve(view.state, event, 0))
        entry = LIMIT.link(log.names, [event], view)[0]
        return Changed(view.state, LIMIT.advance(entry, event, await log.append([entry])).state)

    return await retry_raced(attempt)


async def define_key(log: Log, limit: str, key: str, terms: Terms, stamp: Callable[[], Stamp]) -> None:
    """Define one key of a limit as code does: what a person set for that key stays.

    Raises: WrongSequenceError after too many lost races, and what `Log` raises.
    """
    await change(log, limit, lambda before: _wish(before, key, terms), stamp)


class CodeLimits:
    """The definitions that this process's code has, each written to the ledger once, before its first job."""

    def __init__(self, log: Log, stamp: Callable[[], Stamp]) -> None:
        self._log = log
        self._stamp = stamp
        self._turn = asyncio.Lock()  #: many enqueues begin at once, and one of them writes
        self._said: dict[
            str, Terms
        ] = {}  #: by limit or limit:key, what was written, or is as a person set it
        self._failed: dict[str, float] = {}  #: when it could not be written, by the loop's clock

    async def ensure(self, limits: Sequence[Limit | str], task: str, queue: str) -> None:
        """See to it that what a job's task and queue define is in the ledger, as far as that can be done at once.

        Raises: ConfigurationError where this process defined a limit otherwise before.
        """
        for limit in limits:
            if isinstance(limit, Limit) and not self._is_said(limit, task, queue):
                await self._say(limit, task, queue)

    def _is_said(self, limit: Limit, task: str, queue: str) -> bool:
        """Return whether nothing is to be written for a limit now.

        Raises: ConfigurationError where this process defined it otherwise before.
        """
        if not limit.is_defined:
            return True
        name = joined(limit.name, own_key(limit, task, queue))
        said = self._said.get(name)
        if said is None:
            failed = self._failed.get(name)
            return failed is not None and asyncio.get_running_loop().time() < failed + _PAUSE_S
        if said != limit.terms:
            raise ConfigurationError(
                f"limit {name} is defined twice in this process, and not with the same numbers "
                f"({terms_words(said)}; {terms_words(limit.terms)}): define it once, and use that object everywhere"
            )
        return True

    async def _say(self, limit: Limit, task: str, queue: str) -> None:
        """Write a definition unless the ledger has the same, or a person's; a failure is told in the log.

        Jobs of a limit that could not be written stay held until a later enqueue, or a person, sets it.
        """
        key, wanted = own_key(limit, task, queue), limit.terms
        name = joined(limit.name, key)
        try:
            async with asyncio.timeout(_WAIT_S), self._turn:
                if not self._is_said(limit, task, queue):
                    found = await change(
                        self._log, limit.name, lambda before: _wish(before, key, wanted), self._stamp
                    )
                    self._said[name] = wanted
                    differs = difference(found.after, name, wanted)
                    if differs:
                        logger.warning("%s", differs)
        except (UnreachableError, RefusedError, CorruptLedgerError, TimeoutError) as error:
            self._failed[name] = asyncio.get_running_loop().time()
            why = str(error) or f"the server gave no answer within {_WAIT_S:g} s"
            logger.warning(
                "limit %s could not be set as the code has it, and its jobs stay held while nothing defines it; "
                "an enqueue in %g s or later tries again: %s",
                name,
                _PAUSE_S,
                why,
            )


def _wish(before: Definition | None, key: str, wanted: Terms) -> LimitCommand | None:
    """Return what the code has to say of a limit, None where nothing is to be changed, or nothing may be."""
    if not key:
        by_person = before is not None and before.is_set and before.source == "operator"
        is_said = before is not None and before.common == wanted
        return None if by_person or is_said else SetLimit(terms=wanted, source="code")
    # The name is shared by every queue or task, and each has its numbers under its own key.
    own = Override(**msgspec.structs.asdict(wanted))
    if before is not None and key in before.overrides:
        stays = before.author(key).source == "operator" or before.overrides[key] == own
        if stays:
            return None
    return SetKey(key=key, override=own, source="code")

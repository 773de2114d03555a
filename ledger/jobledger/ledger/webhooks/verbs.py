"""`Ledger.routes`: what a program or a person does with routes, and with what is delivered to them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.additions.announced import AnnouncedTask
from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.graphs.graph_run import run_stored_graph
from jobledger.ledger.graphs.stored import graph_named, owner_of_run
from jobledger.ledger.model.commands import Enqueue, Remove, Stamp
from jobledger.ledger.model.errors import AccessDeniedError, InvalidError, InvalidInputError
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.hooks.match import RuleInput, is_constant, source_value
from jobledger.ledger.model.hooks.route import (
    ROUTE,
    Route,
    RouteDefinition,
    RouteEvent,
    RouteRule,
    SetRoute,
    decide,
)
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.named_chain import ChangedValue, look
from jobledger.ledger.model.seals import OWNER_DEFAULT
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.named.book import AnnouncedTasks, find_announced
from jobledger.ledger.named_values import change
from jobledger.ledger.options import Options
from jobledger.ledger.webhooks.changes import route_named
from jobledger.ledger.webhooks.receiver import Arrival, BodyStore, Match, Outcome, Receiver, matches
from jobledger.ledger.webhooks.signals import RunClient, RunSignal, signal_for

logger = logging.getLogger(__name__)

R = TypeVar("R")


class RouteVerbs:
    """The routes of one client's ledger."""

    def __init__(
        self, client: RunClient, announced: AnnouncedTasks, enqueuer: Enqueuer, bodies: BodyStore
    ) -> None:
        """`announced`: the tasks that workers announced, which say what the jobs of rules begin with."""
        self._client = client
        self._announced = announced
        self._enqueuer = enqueuer
        self._receiver = Receiver(client.log, bodies, self._order, self._signal, client.stamp)

    async def declare(self, name: str, definition: RouteDefinition) -> ChangedValue[Route]:
        """Have a route do what code says, unless a person set it: then it stays, and is returned as it is.

        Raises: as `set`.
        """
        return await self._set(name, SetRoute(definition=definition, source="code"), "", plan=False)

    async def set(
        self, name: str, definition: RouteDefinition, *, reason: str = "", by: str = "", plan: bool = False
    ) -> ChangedValue[Route]:
        """Set what a route does, replacing what it did before. `plan`: append nothing.

        The announced signature of a rule's task is checked: an input that it could never take is refused.

        Raises: InvalidInputError, InvalidTokenError, GraphNotFoundError, LedgerFullError, UnreachableError.
        """
        return await self._set(name, SetRoute(definition=definition, reason=reason), by, plan=plan)

    async def _set(self, name: str, command: SetRoute, by: str, *, plan: bool) -> ChangedValue[Route]:
        for rule in command.definition.rules:
            await self._require_fit(rule)
        return await self._change(name, command, by, plan=plan)

    async def _require_fit(self, rule: RouteRule) -> None:
        """Refuse a rule for a graph that is not stored, an input that its task cannot take, and limits of others.

        Raises: InvalidInputError, GraphNotFoundError, UnreachableError; AccessDeniedError for a limit that the rule's jobs
            may not name.
        """
        if rule.graph:
            await self._patiently(lambda: graph_named(self._client.log, rule.graph))
            return
        if not rule.task:
            return  # it sends a signal to whatever run is there
        task = await find_announced(self._client.patience, self._announced, rule.task, unknown_ok=True)
        given = {name: source for name, source in rule.input.items() if name != "*"}
        late = {name for name, source in given.items() if not is_constant(source)}
        known = {
            name: None if name in late else source_value(source, RuleInput())
            for name, source in given.items()
        }
        if "*" in rule.input:  # the body may give any parameter that the rule does not name
            late |= set(task.signature.names) - known.keys()
            known.update(dict.fromkeys(late - known.keys()))
        try:
            task.signature.check_known(known, late)
            options = task.defaults.changed({}, queue=rule.queue or None, limits=tuple(rule.limits))
            if (
                rule.signal in task.signals
                and rule.composed is None
                and rule.value is not None
                and is_constant(rule.value)
            ):
                value = source_value(rule.value, RuleInput())
                task.signals[rule.signal].check(encode_value(value, what=f"value of signal {rule.signal}"))
        except InvalidInputError as error:
            raise InvalidInputError(f"rule {rule.name}: {error}") from None
        await self._patiently(
            lambda: self._client.code_limits.ensure(options, task.name, options.limits, plan=True)
        )

    async def remove(
        self, name: str, *, reason: str = "", by: str = "", plan: bool = False
    ) -> ChangedValue[Route]:
        """Remove a route; its deliveries stay. Raises: RouteNotFoundError, LedgerFullError, UnreachableError."""
        return await self._change(name, Remove(reason=reason), by, plan=plan)

    async def _change(
        self, name: str, command: SetRoute | Remove, by: str, *, plan: bool
    ) -> ChangedValue[Route]:
        def decided(before: Route | None, stamp: Stamp) -> RouteEvent | None:
            return decide(name, before, command, stamp)

        return await change(self._client, ROUTE, name, decided, by=by, plan=plan)

    async def get(self, name: str) -> Route:
        """Return a route that is set. Raises: RouteNotFoundError, InvalidTokenError, UnreachableError."""
        return (await self._patiently(lambda: route_named(self._client.log, name)))[0]

    async def find(self, name: str) -> Route | None:
        """Return a route as its newest event says, None where it was never set. Raises: as `get`."""
        return (await self._patiently(lambda: look(self._client.log, ROUTE, name))).state

    async def receive(self, route: Route, arrival: Arrival, *, by: str = "", trace: str = "") -> Outcome:
        """Record a delivery to a route that was read, and every job that its rules make, as one batch.

        A repeat of the provider's id gives what the first one made. Without an id the same body within twice
        `tolerance_s` is a repeat.

        Raises: InvalidInputError, PayloadTooLargeError, LedgerFullError; UnreachableError, after which a retry is safe.
        """
        return self._told(
            await self._client.patience.append(
                lambda: self._receiver.receive(route, arrival, by=by, trace=trace),
                job_id=route.name,
                doing="took the delivery",
            )
        )

    def _told(self, outcome: Outcome) -> Outcome:
        """Send hints for runs that just got a signal, and return the outcome."""
        for each in () if outcome.repeated else outcome.matched:
            if each.signal and not each.refused:
                self._client.hints.tell_resume(JobRef(queue=each.queue, job_id=each.job))
        return outcome

    async def retry(self, route: str, delivery: str, *, reason: str = "", by: str = "") -> Outcome:
        """Have a delivery processed once more, by the rules as they are now; it makes jobs with ids of their own.

        Raises: RouteNotFoundError, DeliveryNotFoundError, PayloadMissingError once its body is gone, and as `receive`.
        """
        return self._told(
            await self._patiently(lambda: self._receiver.retry(route, delivery, reason=reason, by=by))
        )

    async def stored(self, route: str, delivery: str) -> Arrival:
        """Return what a delivery was. Raises: DeliveryNotFoundError, PayloadMissingError, UnreachableError."""
        return await self._patiently(lambda: self._receiver.stored(route, delivery))

    async def test(self, route: str, arrival: Arrival) -> list[Match]:
        """Return which rules would hold for a delivery, and the inputs they would make; nothing is changed.

        Raises: RouteNotFoundError, InvalidTokenError, UnreachableError.
        """
        _, definition = await self._patiently(lambda: route_named(self._client.log, route))
        return matches(definition, arrival)

    async def emit(self, name: str, data: Any, *, by: str = "", id: str | None = None) -> Outcome:  # noqa: A002
        """See `Ledger.emit`."""
        if id is not None and not 0 < len(id) <= _ID_CHARACTERS_MAX:
            raise InvalidInputError(f"id must have 1 to {_ID_CHARACTERS_MAX:,} characters, got {len(id):,}")
        body = encode_value(data, what=f"data for route {name}")
        route = await self.get(name)
        assert route.definition is not None, "it is set"
        if len(body) > route.definition.body_bytes_max:
            raise InvalidInputError(
                f"the data has {len(body):,} bytes, and route {name} takes {route.definition.body_bytes_max:,}"
            )
        arrival = Arrival(body=body, given=self._enqueuer.new_id(name) if id is None else id)
        return await self.receive(route, arrival, by=by)

    async def _order(self, match: Match, job_id: str, text: bytes) -> Enqueue:
        """Return the command of a rule's job, with the options that its task announced, except those of the rule.

        A task that nobody announced yet gets its job all the same, and an input that does not fit is found by the worker:
        the delivery is recorded either way, and no provider sends it again because of that.

        Raises: LedgerThrottledError.
        """
        rule, throttle = match.rule, self._client.throttle
        if throttle is not None and not throttle.passes(len(text)):
            await throttle.require(len(text))  # whoever delivers tries again
        order = {
            name: value for name, value in match.said.items() if name not in {"id", "limits", "signal_id"}
        }
        if rule.graph:
            said = {
                **order,
                "owner": await self._owner_of_run(match) or None,
                "delay_s": rule.delay_s or None,
            }
            own = run_stored_graph.defaults.changed(said, queue=None, limits=())
            return await self._enqueuer.bulk_order(run_stored_graph, own, job_id, text)
        task = await self._announced.get(rule.task, unknown_ok=True)
        said = {
            **order,
            "priority": rule.priority,
            "max_attempts": rule.max_attempts or None,
            "timeout_s": rule.timeout_s,
            "delay_s": rule.delay_s or None,
        }
        options = task.defaults.changed(said, queue=rule.queue or None, limits=())
        with contextlib.suppress(
            InvalidError
        ):  # the task got limits after the rule was set, and both together are too many
            options = options.changed({}, queue=None, limits=match.said.get("limits", ()))
        options = await self._nameable(rule, task, options)
        # The delivery makes the job unique, so the task's own rules do not apply.
        options = msgspec.structs.replace(options, unique=None, debounce_s=None, max_wait_s=None)
        try:
            named = None if options.id_template and "id" not in match.said else job_id
            return await self._enqueuer.bulk_order(task, options, named, text)
        except InvalidInputError:
            # An owner that cannot be made of this body is replaced by the default one, so that values stay sealed.
            owner = OWNER_DEFAULT if "{" in options.owner else options.owner
            without = msgspec.structs.replace(
                options, declared=(), declared_queue=None, id_template="", tenant_template="", owner=owner
            )
            return await self._enqueuer.bulk_order(task, without, job_id, text)

    async def _owner_of_run(self, match: Match) -> str:
        """Return the owner of a run of the rule's graph: that of its nodes by this input, or that of the rule.

        Where they differ, or the input gives none, the run is sealed all the same, and ends with the reason.
        """
        said: str = match.said.get("owner", "")
        try:
            _, spec = await graph_named(self._client.log, match.rule.graph)
            return owner_of_run(spec, match.input, said)
        except GraphNotFoundError:  # it was removed after the rule was set
            return said
        except InvalidInputError:
            return said or OWNER_DEFAULT

    async def _nameable(self, rule: RouteRule, task: AnnouncedTask, options: Options) -> Options:
        """Return the options of a rule's job, without limits if it may no longer name one: no delivery is lost."""
        with acting_for(None):  # the right to name limits was checked when the rule was set
            try:
                await self._client.code_limits.ensure(options, task.name, options.limits)
            except AccessDeniedError as error:
                logger.warning("a job of rule %s is begun without limits: %s", rule.name, error)
                return msgspec.structs.replace(options, limits=(), declared=(), declared_queue=None)
        return options

    async def _signal(self, match: Match, signal_id: str, start: Enqueue | None) -> RunSignal:
        run = match.said.get("id", "")
        return await signal_for(self._client, match.rule, run, signal_id, value=match.value, start=start)

    async def _patiently(self, work: Callable[[], Awaitable[R]]) -> R:
        return await self._client.patience.read(work)


_ID_CHARACTERS_MAX = 1_000

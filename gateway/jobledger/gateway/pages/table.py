"""Every page and every form, in one table each."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from jobledger.admin.verbs import graphs as graph_verbs
from jobledger.admin.verbs import jobs as job_verbs
from jobledger.admin.verbs import keys as key_verbs
from jobledger.admin.verbs import limits as limit_verbs
from jobledger.admin.verbs import queues as queue_verbs
from jobledger.admin.verbs import routes as route_verbs
from jobledger.admin.verbs import schedules as schedule_verbs
from jobledger.admin.verbs import webhooks as webhook_verbs
from jobledger.admin.verbs.kit import Declaration, Field, Verb, declared_in, fields_of, read_words
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.pages.forms import (
    add_job,
    begin_again,
    check_ledger,
    do_plan,
    requeue,
    run_graph,
    signal,
)
from jobledger.gateway.pages.page import Fields, Form, OwnPage, Page, SentForm, Viewer
from jobledger.gateway.pages.views import (
    acts,
    dead_letters,
    graphs,
    jobs,
    keys,
    overview,
    plan,
    rerun,
    rows,
    webhooks,
)
from jobledger.gateway.pages.views import job as job_views
from jobledger.gateway.pages.views.changes import changes
from jobledger.gateway.pages.views.clock import clock
from jobledger.gateway.pages.views.ledger import ledger
from jobledger.gateway.pages.views.limits import limits, tenants
from jobledger.gateway.pages.views.queues import queues
from jobledger.gateway.pages.views.runs import runs
from jobledger.gateway.pages.views.schedules import schedules
from jobledger.gateway.pages.views.tasks import task_form, tasks
from jobledger.gateway.pages.views.workers import workers
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import InvalidInputError

# Verbs as forms of pages: the declarations of `jobledger.admin.verbs` read the fields that a form sends.

#: Makes a page from a verb's answer: async (looked, answer).
Teller = Callable[[Viewer, Any], Awaitable[OwnPage]]
_BETWEEN: Final = re.compile(r"[\s,]+")


def forms_of(module: ModuleType, told: Mapping[type[Verb[Any]], Teller] = {}) -> Iterator[Form]:
    """Yield a form for each verb of a module that declares the address of a form.

    `told`: pages for answers of verbs that no other page shows.
    """
    return (form_of(each, told.get(each.verb)) for each in declared_in(module) if each.form)


def form_of(declaration: Declaration, tell: Teller | None = None) -> Form:
    """Return the form of a verb; an empty field counts as not given."""
    fields = fields_of(declaration.verb)

    async def act(sent: SentForm, **words: str) -> str | OwnPage:
        now = sent.gateway.ledger.clock.now()
        if declaration.asks_why:
            sent.fields.reason()
        given: dict[str, Any] = dict(words)
        for each in fields:
            if each.name not in given and (typed := _typed(each, sent.fields)):
                given[each.name] = _read(each, typed, now)
        try:
            wish = declaration.verb(**given)
        except TypeError as error:
            missing = ", ".join(
                each.wire for each in fields if each.default is msgspec.NODEFAULT and each.name not in given
            )
            raise ProblemError("BAD_REQUEST", f"the form lacks {missing}: fill it in") from error
        except InvalidInputError as error:
            raise ProblemError("BAD_REQUEST", str(error)) from error
        found = await wish.perform(GatewayPlace(sent))
        return wish.page_after(found) if tell is None else await tell(sent.looked, found)

    return Form(path=declaration.form, permission=declaration.permission, act=act)


def _typed(field: Field, sent: Fields) -> list[str]:
    """Return the words of a field; the words of a list may share one box, with spaces or commas between them."""
    texts = [text.strip().replace("\r\n", "\n") for text in sent.many(field.wire)]
    return [word for text in texts for word in (_BETWEEN.split(text) if field.is_many else [text]) if word]


def _read(field: Field, words: list[str], now: Any) -> Any:
    if field.kind is bool:
        return True
    try:
        return read_words(field, words, field.wire, now)
    except InvalidInputError as error:
        raise ProblemError("BAD_REQUEST", str(error)) from error


PAGES: Final = (
    Page(path="/", template="overview.html", facts=overview.overview),
    Page(path="/jobs", template="jobs.html", facts=jobs.jobs),
    Page(path="/suggest", template="suggest.html", facts=jobs.suggested),
    Page(path="/clock", template="clock.html", facts=clock),
    Page(path="/changes", template="changes.html", facts=changes),
    Page(
        path="/jobs/{queue}/{id}",
        template="job.html",
        facts=job_views.job_page,
        stands_at=job_views.newest_event,
    ),
    Page(path="/jobs/{queue}/{id}/peek", template="peek.html", facts=job_views.peek),
    Page(
        path="/jobs/{queue}/{id}/rerun",
        template="rerun.html",
        facts=rerun.rerun,
        permission="review",
        stands_at=job_views.newest_event,
    ),
    Page(
        path="/jobs/{queue}/{id}/rows",
        template="rows.html",
        facts=rows.rows,
        permission="payloads",
        stands_at=job_views.newest_event,
    ),
    Page(path="/dead-letters", template="dead_letters.html", facts=dead_letters.dead_letters),
    Page(path="/plan", template="plan.html", facts=plan.plan),
    Page(path="/queues", template="queues.html", facts=queues),
    Page(path="/schedules", template="schedules.html", facts=schedules),
    Page(path="/limits", template="limits.html", facts=limits),
    Page(path="/tenants", template="tenants.html", facts=tenants),
    Page(path="/workers", template="workers.html", facts=workers),
    Page(path="/runs", template="runs.html", facts=runs),
    Page(path="/tasks", template="tasks.html", facts=tasks),
    Page(path="/tasks/{task}", template="task.html", facts=task_form),
    Page(path="/graphs", template="graphs.html", facts=graphs.graphs),
    Page(path="/webhooks", template="webhooks.html", facts=webhooks.webhooks),
    Page(path="/ledger", template="ledger.html", facts=ledger),
    Page(path="/keys", template="keys.html", facts=keys.keys, permission="admin"),
    Page(path="/acts", template="acts.html", facts=acts.acts),
)
FORMS: Final = (
    Form(path="/jobs/{queue}/{id}/rerun", permission="review", act=begin_again),
    *forms_of(job_verbs),
    Form(path="/jobs/{queue}/{id}/requeue", permission="review", act=requeue),
    Form(path="/jobs/{queue}/{id}/signal", permission="queue", act=signal),
    Form(path="/plan", permission=None, act=do_plan),
    Form(path="/ledger/verify", permission="manage", act=check_ledger),
    *forms_of(queue_verbs),
    *forms_of(schedule_verbs),
    *forms_of(limit_verbs),
    Form(path="/tasks/{task}/enqueue", permission="queue", act=add_job),
    Form(path="/graphs/{name}/run", permission="queue", act=run_graph),
    *forms_of(graph_verbs),
    *forms_of(route_verbs),
    *forms_of(webhook_verbs),
    *forms_of(key_verbs, told={key_verbs.CreateKey: keys.told, key_verbs.RotateKey: keys.told}),
)

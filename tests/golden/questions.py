"""Each command that is recorded, with the request of the HTTP API that means the same, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Question(NamedTuple):
    """A command, and a request with the same meaning: about another thing where both do something."""

    words: str  #: as a shell reads them; `$key` stands for a name that is not the same each time
    http: str = ""  #: method and address; "": the API has no such request
    body: Any = None  #: `$nodes` and the like stand for longer values


_APP: Final = "--app tests.golden.app"
_MAIL: Final = "/v1/jobs/mail"
_ORDERS: Final = "/v1/jobs/orders"
_WHY: Final[Mapping[str, Any]] = {"reason": "why"}
_HOUR: Final[Mapping[str, Any]] = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}

_LOOKING: Final = (
    Question("init"),
    Question("stats", "GET /v1/stats"),
    Question("stats --by task"),
    Question("sql 'select id, queue from jobs order by id limit 2'"),
    Question("jobs list", "GET /v1/jobs"),
    Question("jobs list --counts", "GET /v1/jobs/counts"),
    Question("jobs show done-1", f"GET {_MAIL}/done-1"),
    Question("jobs show dead-1", f"GET {_MAIL}/dead-1"),
    Question("jobs show order-1", f"GET {_ORDERS}/order-1"),
    Question("jobs show order-1 --steps", f"GET {_ORDERS}/order-1/steps"),
    Question("jobs logs done-1", f"GET {_MAIL}/done-1/logs"),
    Question("jobs show order-1 --graph", f"GET {_ORDERS}/order-1/graph"),
    Question("jobs show waits-1 --why", f"GET {_MAIL}/waits-1/why"),
    Question("jobs show held-1 --why", f"GET {_MAIL}/held-1/why"),
    Question("jobs show nobody --why", f"GET {_MAIL}/nobody/why"),
    Question("dlq list", "GET /v1/dead-letters"),
    Question("dlq list --group", "GET /v1/dead-letters/groups"),
    Question("dlq show dead-1", f"GET {_MAIL.replace('jobs', 'dead-letters')}/dead-1"),
    Question("workflows list", "GET /v1/workflows"),
    Question("workflows versions"),
    Question(f"workflows check {_APP} --open"),
    Question("queues list", "GET /v1/queues"),
    Question("queues list --by-priority", "GET /v1/queues?by_priority=true"),
    Question("limits list", "GET /v1/limits"),
    Question("limits show api", "GET /v1/limits/api"),
    Question("limits verify"),
    Question("limits simulate --at 1h/now --set nobodys=1"),
    Question("schedules list", "GET /v1/schedules"),
    Question("schedules show nightly", "GET /v1/schedules/nightly"),
    Question("schedules next nightly --count 2", "GET /v1/schedules/nightly/next?count=2"),
    Question("locks list", "GET /v1/locks"),
    Question("locks show account 42"),
    Question("unique show greet", "GET /v1/unique/greet"),
    Question("tables list totals-1", "GET /v1/tables?run=totals-1"),
    Question("tables show totals-1 sums"),
    Question("tables query totals-1 'select * from sums'"),
    Question("events tail --limit 1000", "GET /v1/events?from=1&limit=1000"),
    Question("events subscriptions list", "GET /v1/subscriptions"),
    Question("webhooks list", "GET /v1/webhooks"),
    Question("webhooks show shop", "GET /v1/webhooks/shop"),
    Question("watches list", "GET /v1/watches"),
    Question("watches show deep", "GET /v1/watches/deep"),
    Question("graphs list", "GET /v1/graphs"),
    Question("graphs show onboarding", "GET /v1/graphs/onboarding"),
    Question("routes list", "GET /v1/routes"),
    Question("routes show inner", "GET /v1/routes/inner"),
    Question("routes deliveries inner", "GET /v1/routes/inner/deliveries"),
    Question("routes deliveries inner --id d1", "GET /v1/routes/inner/deliveries/d1"),
    Question("keys list", "GET /v1/keys"),
    Question("keys show $key", "GET /v1/keys/$key"),
    Question("workers list", "GET /v1/workers"),
    Question("timers status"),
    Question("doctor", "GET /v1/diagnoses"),
    Question("projection status", "GET /v1/ledger"),
    Question("projection run --once"),
    Question("projection verify"),
    Question("projection rebuild"),
    Question("audit verify"),
    Question("audit trail done-1", f"GET {_MAIL}/done-1/trail"),
    Question("audit who", "GET /v1/acts"),
    Question("audit diff 3 head"),
    Question("audit keygen seal.pem"),
    Question("audit seal --key seal.pem"),
    Question("audit seals --seal-key seal.pem.pub"),
    Question("audit export whole"),
    Question("audit archive --before now --to archive --plan"),
    Question("audit acknowledge 1 --reason why"),
    Question("replay --to now --into then.db"),
)
_ON_JOBS: Final = (
    Question(
        f"enqueue send to=ann --id made-1 {_APP}",
        "POST /v1/jobs",
        {"task": "send", "queue": "mail", "input": {"to": "ann"}, "id": "made-2"},
    ),
    Question(
        "jobs signal order-1 approved --value '\"yes\"' --id one",
        f"POST {_ORDERS}/order-1/signals/approved?id=two",
        "yes",
    ),
    Question("jobs pause waits-1 --reason why", f"POST {_MAIL}/waits-2/pause", _WHY),
    Question("jobs resume waits-1 --reason why", f"POST {_MAIL}/waits-2/resume", _WHY),
    Question("jobs note waits-1 seen", f"POST {_MAIL}/waits-2/note", {"text": "seen"}),
    Question(
        "jobs rerun order-2 --failed --plan", f"POST {_ORDERS}/order-2/rerun", {"failed": True, "plan": True}
    ),
    Question(
        "jobs rerun order-2 --failed --id again-1",
        f"POST {_ORDERS}/order-2/rerun",
        {"failed": True, "id": "again-2"},
    ),
    Question("jobs cancel waits-3 --reason why", f"POST {_MAIL}/waits-4/cancel", _WHY),
    Question(
        "jobs cancel --queue odd --plan", "POST /v1/acts", {"act": "cancel", "filter": {"queue": "odd"}}
    ),
    Question("jobs cancel --queue odd --yes --reason why"),
    Question("jobs cancel waits-3", f"POST {_MAIL}/waits-4/cancel", {}),
    Question("jobs retry later-1 --reason why", f"POST {_MAIL}/later-2/retry", _WHY),
    Question("jobs reschedule later-3 --in 2h", f"POST {_MAIL}/later-4/reschedule", {"delay_s": 60}),
    Question("jobs discard dead-2 --reason why", f"POST {_MAIL}/dead-3/discard", _WHY),
    Question(f"jobs run waits-5 {_APP}", f"POST {_MAIL}/waits-6/run", {}),
    Question(f"jobs debug done-1 {_APP}"),
    Question("dlq requeue dead-4 --reason why", f"POST {_MAIL}/dead-5/requeue", _WHY),
    Question("dlq requeue --queue mail --plan"),
    Question("dlq discard dead-6 --reason why", f"POST {_MAIL}/dead-7/discard", _WHY),
    Question("queues pause mail --reason why", "POST /v1/queues/orders/pause", _WHY),
    Question("queues resume mail --reason why", "POST /v1/queues/orders/resume", _WHY),
    Question("queues drain odd --reason why", "POST /v1/queues/etl/drain", _WHY),
    Question("queues purge mail --plan"),
    Question("tables export totals-1 sums sums.parquet"),
    Question("tables remove totals-1 --plan"),
    Question("tables remove totals-1 --yes"),
)
_ON_NAMES: Final = (
    Question("limits set api --slots 3 --reason why", "PUT /v1/limits/other", {"slots": 3, **_WHY}),
    Question("limits set api --slots 4 --plan", "PUT /v1/limits/other?plan=true", {"slots": 4}),
    Question("limits remove api --reason why", "DELETE /v1/limits/other?reason=why"),
    Question(
        'schedules add daily --every 1d --task send --input \'{"to": "ann"}\'',
        "PUT /v1/schedules/weekly",
        {"every_s": 86_400, "task": "send", "queue": "mail", "input": {"to": "ann"}},
    ),
    Question("schedules pause daily --reason why", "POST /v1/schedules/weekly/pause", _WHY),
    Question("schedules resume daily --reason why", "POST /v1/schedules/weekly/resume", _WHY),
    Question("schedules trigger daily --reason why", "POST /v1/schedules/weekly/trigger", _WHY),
    Question(
        "schedules backfill daily --from 2026-01-01 --to 2026-01-02",
        "POST /v1/schedules/weekly/backfill",
        {**_HOUR, "to": "2026-01-02T00:00:00Z"},
    ),
    Question("schedules reset daily", "POST /v1/schedules/weekly/reset", _WHY),
    Question("schedules remove daily --reason why", "DELETE /v1/schedules/weekly?reason=why"),
    Question("schedules prune --plan"),
    Question(
        "webhooks set shop --event failed --reason why",
        "PUT /v1/webhooks/gone",
        {"target": {"url": "https://shop.example/in"}, "events": ["failed"]},
    ),
    Question("webhooks pause shop --reason why", "POST /v1/webhooks/gone/pause", _WHY),
    Question("webhooks resume shop --reason why", "POST /v1/webhooks/gone/resume", _WHY),
    Question(
        "webhooks rotate shop --secret env:NEW", "POST /v1/webhooks/gone/rotate", {"secret": "env:NEWER"}
    ),
    Question(
        "webhooks redeliver shop --since 1h --plan",
        "POST /v1/webhooks/gone/redeliver",
        {"since": "$long_ago"},
    ),
    Question("webhooks keygen hooks.key"),
    Question("webhooks remove shop --reason why", "DELETE /v1/webhooks/gone?reason=why"),
    Question(
        "watches set deep --figure depth --above 9 --reason why",
        "PUT /v1/watches/wide",
        {"figure": "depth", "above": 9},
    ),
    Question("watches remove deep --reason why", "DELETE /v1/watches/wide?reason=why"),
    Question("graphs put other --file graph.json", "PUT /v1/graphs/another", {"nodes": "$nodes"}),
    Question("graphs run onboarding --id run-1", "POST /v1/graphs/onboarding/run", {"id": "run-2"}),
    Question("graphs remove other --reason why", "DELETE /v1/graphs/another?reason=why"),
    Question("routes set other --scheme internal --task send", "PUT /v1/routes/another", "$route"),
    Question("routes test inner --id d1", "POST /v1/routes/inner/test", {"delivery": "d1"}),
    Question("routes retry inner d1 --reason why", "POST /v1/routes/inner/deliveries/d2/retry", _WHY),
    Question(
        'routes emit inner --data \'{"to": "ann"}\'', "POST /v1/routes/inner/emit", {"data": {"to": "ann"}}
    ),
    Question("routes remove other --reason why", "DELETE /v1/routes/another?reason=why"),
    Question("keys create dana --role operator", "POST /v1/keys", {"name": "dana", "role": "operator"}),
    Question("keys link dana --role operator --gateway https://jobs.example.com"),
    Question("keys rotate $key --reason why", "POST /v1/keys/$old/rotate", _WHY),
    Question("keys revoke $key --reason why", "DELETE /v1/keys/$old?reason=why"),
    Question("events subscriptions remove billing", "DELETE /v1/subscriptions/other"),
    Question("timers rebuild"),
    Question("audit restore whole --url $empty"),
)
QUESTIONS: Final = (*_LOOKING, *_ON_JOBS, *_ON_NAMES)

#: Commands that are not recorded, and why.
LEFT_OUT: Final[Mapping[str, str]] = {
    "up": "it never ends",
    "server": "it never ends",
    "worker": "it never ends",
    "reactors": "it never ends",
    "gateway": "it never ends",
    "top": "it never ends",
    "metrics": "it never ends",
    "demo": "it takes a minute",
    "events schema": "docs/events.md and the schema itself are compared elsewhere",
    "events asyncapi": "a document of 13,000 lines that follows from the events; tests/unit/test_event_schema.py looks at it",
    "health": "its exit code is the answer; tests/integration/test_cli_health.py asks it",
    "permissions": "docs/subjects.md is made of the same table; tests/integration/test_permissions.py loads it into servers",
    "ledger resize": "tests/integration/test_ledger_size.py asks it on a ledger of its own",
    "upgrade show": "tests/integration/test_upgrades.py asks it of ledgers of earlier releases",
    "upgrade finish": "as `upgrade show`",
    "retention set": "tests/integration/test_never_full.py asks it: what it shows depends on bytes and processes",
    "retention show": "as `retention set`",
    "retention run": "as `retention set`",
    "audit redact": "tests/integration/test_redaction_live.py asks it: it needs an archive",
    "erase": "tests/integration/test_erase.py asks it: it needs a master key and minutes",
    "owners list": "as `erase`",
    "owners show": "as `erase`",
    "owners hold": "as `erase`",
    "owners unhold": "as `erase`",
    "owners export": "as `erase`",
    "owners backup": "as `erase`",
    "owners restore": "as `erase`",
    "owners master rotate": "as `erase`",
    "owners master forget": "as `erase`",
    "backup": "tests/integration/test_backup.py asks it on servers of its own",
    "restore": "as `backup`",
    "cluster show": "it needs several servers; tests/integration/test_replicas.py asks it",
    "cluster replicas": "as `cluster show`",
    "outbox relay": "it asks a database of an application; tests/integration/test_cli_outbox.py does so",
    "outbox status": "as `outbox relay`",
    "outbox list": "as `outbox relay`",
    "outbox retry": "as `outbox relay`",
    "outbox discard": "as `outbox relay`",
    "outbox create": "as `outbox relay`",
    "outbox schema": "as `outbox relay`",
    "webhooks test": "it waits for a gateway that posts the message",
}

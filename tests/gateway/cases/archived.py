"""What is told of a job whose events were moved into an archive, in a ledger of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tests.gateway.cases.job_acts import BODIES, VERBS
from tests.gateway.cases.webhooks import SHOP
from tests.support.gateway import Asker, send, someone

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.ledger import TaskRegistry

_READ: Final = (
    "",
    "/events",
    "/attempts",
    "/trail",
    "/why",
    "/input",
    "/result",
    "/logs",
    "/steps",
    "/graph",
    "/rows",
)
_LISTS: Final = (
    "/v1/jobs",
    "/v1/jobs/counts",
    "/v1/dead-letters",
    "/v1/dead-letters/groups",
    "/v1/acts",
    "/v1/queues",
    "/v1/queues/mail/wanted",
    "/v1/queues/mail",
    "/v1/stats",
    "/v1/stats/buckets",
    "/v1/stats/rates",
    "/v1/schedules",
    "/v1/schedules/nightly",
    "/v1/limits",
    "/v1/tables",
    "/v1/routes",
    "/v1/routes/github/deliveries",
)


async def archived(asker: Asker) -> None:
    job = await asker.completed()
    ledger, first = asker.ledger, (await job.history())[0].stream_sequence
    await asker.gateway.rows.catch_up()
    deps = archive_deps(ledger, by="ann", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, asker.folder / "archive", deps).run(datetime.now(UTC))
    path, then = f"/v1/jobs/mail/{job.id}", {"sequence": first}
    for what in _READ:
        answer = await asker.sees("GET", f"{path}{what}", "ARCHIVED")
        assert "jobledger" not in answer.json()["detail"]
    asker.gateway.tasks = TaskRegistry([send])
    for verb in VERBS:
        body = BODIES.get(verb, {})
        await asker.post(f"{path}/{verb}", body, "ARCHIVED")
    await asker.sees("GET", f"/v1/dead-letters/mail/{job.id}", "ARCHIVED")
    await asker.post(f"{path}/signals/approval", {}, "ARCHIVED")
    await asker.post(f"{path}/rerun", {"from": "a"}, "ARCHIVED")
    bound = someone("view", tasks=("greet",))
    await asker.sees("GET", path, "JOB_NOT_FOUND", who=bound)
    other = await asker.job()
    await asker.sees("PUT", "/v1/webhooks/shop", 200, json=SHOP)
    for each in (*_LISTS, f"/v1/jobs/mail/{other.id}/tree", "/v1/webhooks/shop/deliveries"):
        await asker.sees("GET", each, "ARCHIVED", params=then)
    await asker.sees("GET", f"/v1/jobs/mail/{other.id}", "ARCHIVED", params=then)
    await asker.sees("GET", f"/v1/jobs/{job.id}", "ARCHIVED")


CASES: Final = (archived,)

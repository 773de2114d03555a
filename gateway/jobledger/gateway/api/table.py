"""Every endpoint of the API, in the order in which documents list them."""

from __future__ import annotations

from typing import Final

from jobledger.admin.verbs import graphs as graph_verbs
from jobledger.admin.verbs import jobs as job_verbs
from jobledger.admin.verbs import keys as key_verbs
from jobledger.admin.verbs import limits as limit_verbs
from jobledger.admin.verbs import owners as owner_verbs
from jobledger.admin.verbs import queues as queue_verbs
from jobledger.admin.verbs import retention as retention_verbs
from jobledger.admin.verbs import routes as route_verbs
from jobledger.admin.verbs import schedules as schedule_verbs
from jobledger.admin.verbs import upgrades as upgrade_verbs
from jobledger.admin.verbs import watches as watch_verbs
from jobledger.admin.verbs import webhooks as webhook_verbs
from jobledger.gateway.api import (
    batches,
    bulk_acts,
    enqueue,
    events,
    fleet,
    graphs,
    job_acts,
    jobs,
    keys,
    limits,
    lists,
    process,
    queues,
    routes,
    run_now,
    runs,
    schedules,
    stored_graphs,
    webhooks,
)
from jobledger.gateway.api.verbs import endpoints_of
from jobledger.gateway.hooks import receive
from jobledger.gateway.http.endpoint import Endpoint

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *lists.ENDPOINTS,
    *bulk_acts.ENDPOINTS,
    *enqueue.ENDPOINTS,
    *jobs.ENDPOINTS,
    *endpoints_of(job_verbs),
    *job_acts.ENDPOINTS,
    *runs.ENDPOINTS,
    *graphs.ENDPOINTS,
    *endpoints_of(graph_verbs),
    *stored_graphs.ENDPOINTS,
    *batches.ENDPOINTS,
    *queues.ENDPOINTS,
    *endpoints_of(queue_verbs),
    *schedules.ENDPOINTS,
    *endpoints_of(schedule_verbs),
    *limits.ENDPOINTS,
    *endpoints_of(limit_verbs),
    *fleet.ENDPOINTS,
    *run_now.ENDPOINTS,
    *events.ENDPOINTS,
    *process.ENDPOINTS,
    *keys.ENDPOINTS,
    *endpoints_of(webhook_verbs),
    *endpoints_of(key_verbs),
    *webhooks.ENDPOINTS,
    *endpoints_of(watch_verbs),
    *endpoints_of(retention_verbs),
    *endpoints_of(owner_verbs),
    *endpoints_of(upgrade_verbs),
    *receive.ENDPOINTS,
    *endpoints_of(route_verbs),
    *routes.ENDPOINTS,
)

"""Every endpoint of the API, in the order in which addresses are compared: what is asked for most stands first."""

from __future__ import annotations

from typing import Final

from jobledger.gateway.api import (
    bulk_acts,
    enqueueing,
    events,
    fleet,
    job_acts,
    jobs,
    keys,
    limits,
    listing,
    process,
    queues,
    routes,
    running,
    runs,
    schedules,
    watches,
    webhooks,
)
from jobledger.gateway.hooks import receive
from jobledger.gateway.http.endpoint import Endpoint

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *listing.ENDPOINTS,
    *bulk_acts.ENDPOINTS,
    *enqueueing.ENDPOINTS,
    *jobs.ENDPOINTS,
    *job_acts.ENDPOINTS,
    *runs.ENDPOINTS,
    *queues.ENDPOINTS,
    *schedules.ENDPOINTS,
    *limits.ENDPOINTS,
    *fleet.ENDPOINTS,
    *running.ENDPOINTS,
    *events.ENDPOINTS,
    *process.ENDPOINTS,
    *keys.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *watches.ENDPOINTS,
    *receive.ENDPOINTS,
    *routes.ENDPOINTS,
)

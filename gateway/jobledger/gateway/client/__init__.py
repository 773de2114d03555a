"""The client of a gateway: the verbs of the ledger over HTTP, for programs that have no connection to its server.

    async with connect("https://jobs.example.org", key="jl_...") as ledger:
        job = await ledger.enqueue("send_welcome", {"user_id": 7})
        print(await job.result(timeout_s=30))

It needs httpx, which `pip install 'jobledger[client]'` brings, and nothing of the server's libraries.
`jobledger.gateway.client.sync.connect` is the same for code that blocks.
"""

from jobledger.gateway.client.models import BulkResult, Event, JobLogs, JobSnapshot, LogLine
from jobledger.gateway.client.problems import GatewayProblem
from jobledger.gateway.client.remote import JobHandle, Ledger, connect

__all__ = [
    "BulkResult",
    "Event",
    "GatewayProblem",
    "JobHandle",
    "JobLogs",
    "JobSnapshot",
    "Ledger",
    "LogLine",
    "connect",
]

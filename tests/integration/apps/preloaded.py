"""A WSGI application that connects when it is imported, before its server forks: `JOBLEDGER_URL`, `LEDGER_ENVIRONMENT`.

POST /<id> enqueues a job of that id and answers `PID CREATED`; GET /<id> answers its state.
"""

from __future__ import annotations

import os

from flask import Flask, request

from jobledger.ledger import sync, task

app = Flask(__name__)
ledger = sync.connect(
    os.environ["JOBLEDGER_URL"],
    environment=os.environ.get("LEDGER_ENVIRONMENT", ""),
    ledger_bytes_max=1 << 24,
)


@task(queue="web")
def greet(name: str) -> str:
    return f"hello {name}"


@app.route("/<job_id>", methods=["GET", "POST"])
def job(job_id: str) -> str:
    if request.method == "POST":
        return f"{os.getpid()} {ledger.enqueue(greet.options(id=job_id), job_id).created}"
    return ledger.job(job_id).state().value

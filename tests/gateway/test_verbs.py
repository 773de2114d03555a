"""What a person or a program can do with a ledger can be done over HTTP, or it is said here why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.problems import problem_of
from jobledger.gateway.remedies import ADDRESSES, hint_over_http, over_http
from jobledger.ledger import JobHandle, Ledger
from jobledger.ledger.model.errors import JobNotFoundError, ScheduleExistsError
from jobledger.ledger.schedules.verbs import ScheduleVerbs

ROOT: Final = Path(__file__).parents[2]
_ONE: Final = "the address names a job exactly, so its chain is read at once"
_DOCTOR: Final = "looks at the server's machine; /readyz, /metrics and /v1/ledger tell how the ledger is"
_FILES: Final = "reads or writes files of the machine"
_SERVERS: Final = "whoever runs the servers says on how many of them the ledger lies, and how large it is"
_CONTAINER: Final = "asked from within the container of what is looked at"
_PART: Final = "a part of other verbs"
#: Verbs that no handler calls, and why.
REASONS: Final[dict[str, str]] = {
    "acknowledge_message": "an auditor accepts what is no event, at the ledger itself",
    "authors": _PART,
    "back_up": _FILES,
    "bring_keys": _FILES,
    "change_replicas": _SERVERS,
    "check_clock": _DOCTOR,
    "check_consumers": _DOCTOR,
    "check_jetstream": _DOCTOR,
    "check_limits": _DOCTOR,
    "check_pages": _DOCTOR,
    "check_runs": "runs the code of workflows against their past: for whoever deploys that code",
    "check_place": _FILES,
    "check_server": _DOCTOR,
    "check_stream": _DOCTOR,
    "copy_table": _PART,
    "compare_grants": "reads the whole ledger, for a diagnosis",
    "counted": "GET /v1/diagnoses lists what it counts, and /metrics has the numbers",
    "create_link": "whoever may read the ledger makes a link for somebody who has no key yet",
    "decided_again": _PART,
    "emit": "POST /in/{route} does it for who sends a webhook",
    "enqueue_many": "needs the task's code; POST /v1/jobs/bulk enqueues by name",
    "ensure_first_key": "lets somebody in where nobody can be yet",
    "examine": _DOCTOR,
    "export_owner": _FILES,
    "execute": _PART,
    "export_table": _FILES,
    "file_name": _PART,
    "find_by_ids": _ONE,
    "find_chain": "GET /v1/events tells the events of whatever is no job",
    "find_dead_letters": "acts on many choose by the filter of GET /v1/jobs",
    "find_job": _ONE,
    "find_jobs": "acts on many choose by the filter of GET /v1/jobs",
    "keep_keys": _FILES,
    "keep_form": _PART,
    "learn_form": _PART,
    "held_facts": _PART,
    "is_stored": _FILES,
    "lag_of": _PART,
    "look_at_gateway": _CONTAINER,
    "look_at_server": _CONTAINER,
    "look_at_workers": _CONTAINER,
    "move": _PART,
    "list_copies": _SERVERS,
    "lock_state": "GET /v1/locks lists them, with who holds each",
    "on_behalf_of": _PART,
    "one_table": "GET /v1/tables lists them by run",
    "open_children_of": _PART,
    "operator_acts": "checks the chain of each job that it names; GET /v1/acts gives the same rows",
    "perform_one": _PART,
    "plan_replicas": _SERVERS,
    "present": _PART,
    "query_tables": "copies tables to the machine and starts a process there; GET .../rows has the first rows of one",
    "projection_path": _FILES,
    "read_logs": "GET /v1/jobs/{queue}/{id}/logs asks the job's handle",
    "refuse_hole": _FILES,
    "resize_ledger": _SERVERS,
    "restore": _FILES,
    "retention_of": _PART,
    "set_webhook": "changes a part of a webhook; PUT /v1/webhooks/{name} says all of it",
    "stamp": _PART,
    "state_and_changes": _PART,
    "subscription": "GET /v1/events is read from any point on, and Last-Event-ID goes on there",
    "unfinished_erasures": _DOCTOR,
    "tables_of": "GET /v1/tables reads the same rows",
    "task_names": "GET /v1/tasks has them",
    "tasks_unheard_of": "a hint of the command that sets a route",
    "tell_consumers": _PART,
    "to_prune": "schedules that no code has are pruned by whoever deploys it",
    "transitions": "GET /v1/events?job= streams them",
    "viewed": _PART,
    "with_archive": _FILES,
    "verify_backup": _FILES,
}


def _names(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr


def _verbs() -> Iterator[str]:
    """Yield what is awaited of admin, and every public method of the client, its handles and its schedules."""
    for path in (ROOT / "admin" / "jobledger" / "admin").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node.name
    for kind in (Ledger, JobHandle, ScheduleVerbs):
        yield from (name for name, each in vars(kind).items() if callable(each) and not name.startswith("_"))


def test_no_verb_is_missing_without_a_reason() -> None:
    called = set(_names(ROOT / "gateway" / "jobledger" / "gateway"))
    called |= set(_names(ROOT / "admin" / "jobledger" / "admin" / "verbs"))  # each of these has an endpoint
    verbs = set(_verbs())
    assert verbs - called - REASONS.keys() == set(), "give them an endpoint, or say here why there is none"
    assert REASONS.keys() - verbs == set(), "are gone: take their reasons away"


#: Commands that only the owner of the machine or of the code can give; a sentence names them as they are.
_OF_THE_MACHINE: Final = re.compile(
    r"(audit|backup|restore|ledger|retention|upgrade|projection|doctor|up|server|worker|metrics|timers|replay|gateway|tables"
    r"|keys create|keys rotate|keys login|owners master|events subscriptions|demo|routes set|webhooks set|watches set)\b"
)


def test_each_command_in_a_sentence_of_an_error_has_an_address() -> None:
    unknown: set[str] = set()
    for folder in ("ledger", "admin", "projections", "audit"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if "`jobledger" in source else ():
                called = node.func if isinstance(node, ast.Call) else None
                builds = isinstance(called, ast.Attribute) and called.attr == "__init__"
                if builds or isinstance(node, ast.Raise):
                    text = "".join(
                        each.value
                        for each in ast.walk(node)
                        if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    )
                    unknown |= {
                        found
                        for found in re.findall(r"`jobledger ([a-z]+(?: [a-z]+)?)", text)
                        if found not in ADDRESSES and not _OF_THE_MACHINE.match(found)
                    }
    assert unknown == set(), "say in gateway/remedies.py which address does that"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("none; `jobledger jobs list` shows those", "none; `GET /v1/jobs` shows those"),
        ("see `jobledger jobs show a-1`", "see `GET /v1/jobs/a-1`"),
        (
            "set it, as with `jobledger limits set api --slots 10`",
            'set it, as with `PUT /v1/limits/api {"slots": 10}`',
        ),
        ("`jobledger routes deliveries github` shows them", "`GET /v1/routes/github/deliveries` shows them"),
        ("`jobledger dlq requeue a-1`", "`POST /v1/jobs/QUEUE/a-1/requeue`"),
        ("run `jobledger audit verify`", "run `jobledger audit verify`"),
        ("see `jobledger jobs show`", "see `jobledger jobs show`"),
        ("`jobledger dlq requeue --fingerprint 4f`", "`jobledger dlq requeue --fingerprint 4f`"),
        ("`jobledger jobs show a-1 --why`", "`GET /v1/jobs/a-1`"),
        ("`jobledger jobs show a-1 --archive DIR`", "`jobledger jobs show a-1 --archive DIR`"),
    ],
)
def test_a_command_becomes_an_address(said: str, told: str) -> None:
    assert over_http(said) == told


def test_a_problem_says_what_to_do_over_http() -> None:
    problem, _ = problem_of(JobNotFoundError("a-1"), "r-1")
    assert problem.detail == "no job 'a-1' is in the ledger; `GET /v1/jobs` shows those that are"
    assert "--" not in problem_of(ScheduleExistsError("nightly"), "r-1")[0].detail


def test_a_hint_about_a_job_becomes_a_request_where_one_does_the_same() -> None:
    assert hint_over_http("jobledger jobs retry a-1", "mail") == "POST /v1/jobs/mail/a-1/retry"
    assert hint_over_http("jobledger worker --app ... --queue mail", "mail").startswith("jobledger worker")
    assert hint_over_http("", "mail") == ""
    elsewhere = hint_over_http("jobledger dlq requeue a-1-2-0 --queue pages", "mail")
    assert elsewhere == "POST /v1/jobs/pages/a-1-2-0/requeue"
    assert (
        hint_over_http("jobledger jobs signal a-1 go --value 1", "mail")
        == "POST /v1/jobs/mail/a-1/signals/go 1"
    )
    addresses = {f"{each.method} {each.path}" for each in ENDPOINTS}
    for address in ADDRESSES.values():
        pattern = re.escape(address).replace(r"\{queue\}", r"\{\w+\}").replace(r"\{\}", r"\{\w+\}")
        assert any(re.fullmatch(pattern, each) for each in addresses), address


@pytest.mark.anyio
async def test_the_page_of_the_document_is_whole_and_asks_nobody_else(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    document = (await http.get("/openapi.json")).json()
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for path in document["paths"]:
        assert path in answer.text
    assert "<script" not in answer.text
    assert not re.findall(r'(?:src|href)="https?:', answer.text)
    anchors = set(re.findall(r'id="([^"]+)"', answer.text))
    assert {each for each in re.findall(r'href="#([^"]+)"', answer.text) if each not in anchors} == set()
    style = await http.get(re.findall(r'rel="stylesheet" href="([^"]+)"', answer.text)[0])
    assert (style.status_code, style.headers["content-type"].partition(";")[0]) == (200, "text/css")

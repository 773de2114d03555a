"""The table of endpoints: addresses, checks, errors and the document that is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from prometheus_client import CollectorRegistry
from referencing import Registry, Resource
from starlette.requests import Request
from tests.support.open_gateway import LocalAccess

from jobledger.audit.errors import ScratchSpaceError
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import JSON
from jobledger.gateway.life import Life
from jobledger.gateway.problems import CODE_OF, KINDS, problem_of
from jobledger.gateway.process.children import setup_of
from jobledger.gateway.process.health import ProcessHealth
from jobledger.gateway.process.past import PastViews
from jobledger.gateway.process.rows import FollowedProjection, FollowedRows
from jobledger.ledger import Ledger, task
from jobledger.ledger.files import UnfitFileError
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.projections import errors as projections
from jobledger.projections.errors import ProjectionError

pytestmark = pytest.mark.anyio
_NOT_ANSWERED = ("jobledger.cli", "jobledger.ledger.nats.", "jobledger.workers")


@task(queue="mail")
async def send(to: str) -> None:
    """Be enqueued only."""


async def test_a_job_is_shown_and_not_sent_twice(ledger: Ledger, http: httpx.AsyncClient) -> None:
    job = await ledger.enqueue(send, to="ann")
    answer = await http.get(f"/v1/jobs/mail/{job.id}")
    assert (answer.status_code, answer.json()["status"], answer.json()["input"]) == (
        200,
        "queued",
        {"to": "ann"},
    )
    assert answer.headers["etag"] == f'"{answer.json()["last_sequence"]}"'
    again = await http.get(f"/v1/jobs/{job.id}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_a_job_is_shown_as_it_was(ledger: Ledger, http: httpx.AsyncClient) -> None:
    job = await ledger.enqueue(send, to="ann")
    first = (await job.history())[-1].stream_sequence
    await ledger.cancel(job)
    now = (await http.get(f"/v1/jobs/mail/{job.id}")).json()["status"]
    then = (await http.get(f"/v1/jobs/mail/{job.id}", params={"sequence": first})).json()["status"]
    assert (now, then) == ("cancelled", "queued")


@pytest.mark.parametrize(
    ("path", "status", "code", "word"),
    [
        ("/v1/jobs/mail/none", 404, "JOB_NOT_FOUND", "none"),
        ("/v1/jobs/mail/none?colour=red", 400, "BAD_REQUEST", "known are at, sequence"),
        ("/v1/jobs/mail/none?sequence=x", 400, "BAD_REQUEST", "int"),
        ("/v1/jobs/mail/none?sequence=1&sequence=2", 400, "BAD_REQUEST", "twice"),
        ("/v1/nothing", 404, "ENDPOINT_NOT_FOUND", "/openapi.json"),
    ],
)
async def test_what_cannot_be_done_is_said_in_one_form(
    http: httpx.AsyncClient, path: str, status: int, code: str, word: str
) -> None:
    answer = await http.get(path, headers={"x-request-id": "r-1"})
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert word in problem["detail"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == answer.headers["x-request-id"] == "r-1"


async def test_another_method_is_refused_with_those_that_are_taken(http: httpx.AsyncClient) -> None:
    answer = await http.delete("/v1/jobs/mail/none")
    assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_an_act_without_a_body_is_done_as_its_defaults_say(
    ledger: Ledger, http: httpx.AsyncClient
) -> None:
    job = await ledger.enqueue(send, to="ann")
    cancelled = await http.post(f"/v1/jobs/mail/{job.id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (await http.post("/v1/queues/mail/pause", headers={"content-type": JSON})).status_code == 200
    for path, sent, word in (
        ("/v1/queues/mail/resume", b"{}", "the body has no Content-Type: send application/json"),
        ("/v1/jobs", b"", "the request has no Content-Type"),
        (f"/v1/jobs/mail/{job.id}/reschedule", b"", "give run_at or delay_s"),
    ):
        refused = await http.post(path, content=sent)
        assert (refused.status_code, refused.json()["code"]) == (400, "BAD_REQUEST"), path
        assert word in refused.json()["detail"], path
    assert (await http.put("/v1/limits/mails")).status_code == 400
    assert (await ledger.queue_state("mail")).is_paused(ledger.clock.now())


async def test_the_document_says_which_bodies_may_be_left_out(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]

    def is_needed(path: str, method: str = "post") -> bool:
        needed: bool = paths[path][method]["requestBody"]["required"]
        return needed

    assert not is_needed("/v1/jobs/{queue}/{id}/cancel")
    assert not is_needed("/v1/queues/{queue}/drain")
    assert is_needed("/v1/jobs/{queue}/{id}/note")
    assert is_needed("/v1/limits/{limit}", "put")
    assert is_needed("/v1/jobs/{queue}/{id}/signals/{name}")
    assert is_needed("/in/{route}")


async def test_a_slash_too_many_leads_to_the_address_without_it(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/queues/?state=paused")
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        "http://127.0.0.1:8080/v1/queues?state=paused",
    )
    assert (await http.get("/v1/nothing/")).status_code == 404


async def test_who_may_not_see_values_sees_the_rest(
    gateway: Gateway, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    class Viewer(LocalAccess):
        def principal(self, connection: object) -> Principal:
            return Principal(name="eve", permissions=frozenset({"view"}), queues=("mail",))

    gateway.access = Viewer()
    job = await ledger.enqueue(send, to="ann")
    answer = await http.get(f"/v1/jobs/{job.id}")
    assert answer.status_code == 200
    assert "ann" not in answer.text
    other = await ledger.enqueue(send.options(queue="other"), to="ann")
    refused = await http.get(f"/v1/jobs/{other.id}")
    assert (refused.status_code, refused.json()["code"]) == (404, "JOB_NOT_FOUND")


def _faults(document: dict[str, Any]) -> list[str]:
    """Return what `validate` of openapi_spec_validator would find, in a third of the time.

    That looks for the anchors of the schema of OpenAPI in all of it for each value of the document; here it is a member
    of a registry, which knows them.
    """
    checker = OpenAPIV31SpecValidator(document)
    slow = checker.schema_validator
    resource = Resource.from_contents(slow.schema)
    registry = Registry[Any]().with_resource(resource.id() or "", resource).crawl()
    quick = slow.__class__({"$ref": resource.id()}, registry=registry)
    return [*map(str, quick.iter_errors(document)), *map(str, checker.root_validator(checker.schema_path))]


async def test_the_document_is_valid_and_names_every_endpoint(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert _faults(document) == []
    assert _faults({**document, "paths": {"/v1": {"get": {"responses": {"200x": {}}}}}}) != []
    named = {(path, method.upper()) for path, each in document["paths"].items() for method in each}
    assert named == {(endpoint.path, endpoint.method) for endpoint in ENDPOINTS}


async def test_the_document_names_the_headers_that_an_endpoint_heeds(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]

    def headers(method: str, path: str) -> list[str]:
        parameters = paths[path][method]["parameters"]
        assert all(
            each["description"] and not each["required"] for each in parameters if each["in"] == "header"
        )
        return [each["name"] for each in parameters if each["in"] == "header"]

    assert headers("post", "/v1/jobs") == ["Idempotency-Key", "Prefer"]
    assert headers("get", "/v1/jobs/{queue}/{id}") == ["If-None-Match", "Prefer"]
    assert headers("post", "/v1/jobs/{queue}/{id}/cancel") == ["If-Match"]
    assert headers("get", "/v1/events") == ["Last-Event-ID"]
    assert headers("get", "/v1/queues") == []
    assert "content" not in paths["/v1/jobs/{queue}/{id}"]["get"]["responses"]["304"]


async def test_a_header_is_read_only_where_the_endpoint_declares_it(gateway: Gateway) -> None:
    request = Request({"type": "http", "method": "GET", "headers": [(b"prefer", b"wait=3")]})
    nobody = Principal(name="nobody", permissions=frozenset())
    assert ApiRequest(gateway, request, nobody, "r-1", ("Prefer",)).wait_s == 3
    with pytest.raises(AssertionError, match="does not declare that it heeds Prefer"):
        _ = ApiRequest(gateway, request, nobody, "r-1").wait_s


async def test_every_schema_of_the_document_has_the_name_of_its_class(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    names = document["components"]["schemas"]
    assert [name for name in names if not name.isalnum() or "jobledger" in name] == []


def test_every_class_of_errors_has_a_code() -> None:
    def below(kind: type[BaseException]) -> set[type[BaseException]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    for kind in below(LedgerError) | below(ProjectionError):
        nearest = next(each for each in kind.__mro__ if each in CODE_OF)
        assert CODE_OF[nearest] in KINDS
        # Those never come to a handler: commands, the server's API, and workers have them to themselves.
        ours = kind.__module__.startswith("jobledger.") and not kind.__module__.startswith(_NOT_ANSWERED)
        assert not ours or nearest is not LedgerError or kind is LedgerError, f"{kind.__name__} has no code"


async def test_nobody_is_told_over_http_where_the_files_of_the_gateway_are(
    gateway: Gateway,
    ledger: Ledger,
    http: httpx.AsyncClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "lists.db"
    rows = FollowedRows(ledger, file, PastViews(setup_of(ledger, file, "past")))
    gateway.projection = FollowedProjection(rows, file)
    gateway.health = ProcessHealth(
        ledger, file, Life(), lambda: "", CollectorRegistry(), overloaded=lambda: ""
    )

    async def told(path: str) -> tuple[str, str]:
        caplog.clear()
        answer = await http.get(path)
        assert str(tmp_path) not in answer.text
        assert str(file) in caplog.text
        return answer.json()["code"], answer.json()["detail"]

    assert await told("/v1/queues") == (
        "PROJECTION_BEHIND",
        "the lists do not have what was asked for yet: try again in a moment",
    )
    file.write_bytes(b"no database" * 1_000)
    code, sentence = await told("/v1/queues")
    assert code == "PROJECTION_UNFIT"
    assert sentence.startswith("the lists of this gateway cannot be used: its log says why")
    assert await told("/readyz") == ("NOT_READY", sentence)


def test_no_error_of_lists_names_a_file_over_http() -> None:
    file = Path("/srv/jobledger/lists.db")
    for error in (
        projections.ProjectionBehindError(file, 9, 7, 5.0),
        projections.ProjectionBusyError(file, 5.0),
        projections.ProjectionStorageError(file, "full"),
        projections.PositionMismatchError(file, 7, "the ledger has another event there"),
        projections.PositionArchivedError(file, 7, 9),
        projections.OlderSchemaError(file, 1, 2),
        UnfitFileError(file, "it is a folder"),
        ScratchSpaceError(f"there is no room in {file}"),
    ):
        problem, _ = problem_of(error, "r-1")
        assert "/srv" in str(error)
        assert "/srv" not in problem.detail, type(error)
    behind, _ = problem_of(projections.ProjectionBehindError(file, 9, 7, 5.0), "r-1")
    assert behind.detail == "the lists have stream sequence 7 and not yet 9: try again in a moment"
    archived = projections.MomentArchivedError("the ledger begins at 9", "7")
    assert problem_of(archived, "r-1")[0].detail == str(archived)

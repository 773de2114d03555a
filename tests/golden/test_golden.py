"""What users of the command line, of the HTTP API and of the dashboard's forms rely on is as it was recorded."""

from __future__ import annotations

from tests.golden.conftest import Recorded
from tests.golden.form_fields import form_fields
from tests.golden.help_texts import help_texts
from tests.golden.record import FOLDER, as_text, compare, difference

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.openapi import openapi


def test_the_help_is_as_recorded() -> None:
    texts = help_texts()
    compare({f"help/{group}.txt": text for group, text in texts.items()})
    assert {path.stem for path in (FOLDER / "help").iterdir()} == set(texts), "of a group that is gone"


def test_the_document_of_the_http_api_is_as_recorded() -> None:
    compare({"openapi.json": as_text(openapi(ENDPOINTS))})


def test_the_forms_of_the_dashboard_are_as_recorded(recorded: Recorded) -> None:
    compare({"forms.json": as_text(recorded.portal.call(form_fields, recorded.http))})


def test_a_long_difference_is_cut_and_says_how_to_accept_it() -> None:
    now = "\n".join(str(number) for number in range(500))
    told = difference({"x": "", "y": "same"}, {"x": now, "y": "same"}).splitlines()
    assert (len(told), told[3], told[-2]) == (62, "+0", "... and 443 more lines")
    assert told[-1].startswith("If x in tests/golden shall change like this, run `make golden`")

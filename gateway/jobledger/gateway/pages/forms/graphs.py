"""Beginning a run of a stored graph from its page."""

from __future__ import annotations

import msgspec

from jobledger.admin.graphs import require_of_nodes
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import check_text
from jobledger.ledger.model.reserved_ids import check_unreserved


async def run_graph(sent: SentForm, name: str) -> str:
    """Begin a run in the name of the form's sender; return its page. Raises: ProblemError, and as `graphs.run`."""
    ledger, fields = sent.gateway.ledger, sent.fields
    require_of_nodes(sent.principal, "queue", name, await ledger.graphs.get(name))
    text = check_text(fields.text("input").encode() or b"{}", what=f"input of graph {name}")
    try:
        values = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the input of graph {name} must be a JSON object: {error}") from error
    chosen = fields.one("id") or None
    if chosen is not None:
        check_unreserved(chosen)
    with acting_for(None):  # the permission for each node was checked
        made = await ledger.graphs.run(name, values, id=chosen, by=sent.principal.name)
    return address(f"/jobs/{made.ref.queue}/{made.id}")

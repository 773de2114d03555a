"""A signpost for `from jobledger import workflow`: the namespace package has no names, and cannot say so itself."""

raise ImportError(
    "jobledger has no workflow: write `from jobledger.ledger import workflow`", name="jobledger"
)

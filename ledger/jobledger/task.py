"""A signpost for `from jobledger import task`: the namespace package has no names, and cannot say so itself."""

raise ImportError("jobledger has no task: write `from jobledger.ledger import task`", name="jobledger")

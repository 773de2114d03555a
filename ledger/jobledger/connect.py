"""A signpost for `from jobledger import connect`: the namespace package has no names, and cannot say so itself."""

raise ImportError("jobledger has no connect: write `from jobledger.ledger import connect`", name="jobledger")

"""Routes, webhooks and watches as facts of the ledger, and what is matched against them. Pure."""

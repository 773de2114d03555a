"""Batches of tasks by their names, filled by one request after the other; what stands on `Ledger`, and not under it."""

"""Batches of jobs by the names of their tasks, filled by one request after another. Uses `Ledger`, which does not use it."""

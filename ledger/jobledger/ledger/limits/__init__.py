"""Limits as an application declares them: `Limit` and `Queue`, the keys of a job, and who defines a limit in the ledger."""

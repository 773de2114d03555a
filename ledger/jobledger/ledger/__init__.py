"""The ledger: events, the fold, the log, the client. It knows nothing of workers, projections or the CLI."""

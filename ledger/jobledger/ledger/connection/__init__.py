"""Making a `Ledger` out of settings and a connection."""

"""The metrics of a whole ledger, taken from its projection and its server."""

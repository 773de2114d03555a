"""Processes that read the ledger and append to it: timers, dead letters, the reconciler, the sealer."""

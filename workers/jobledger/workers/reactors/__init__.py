"""Reactors, which read the ledger and append to it: timers, children, limits, dead letters, the reconciler, seals."""

"""The pure part of the ledger: events, the fold, decisions, subjects, and the protocol of a log.

Nothing here speaks to a server, reads a clock by itself or imports from the rest of the ledger.
"""

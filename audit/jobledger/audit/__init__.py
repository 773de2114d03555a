"""What proves, explains and keeps the past of a ledger: verify, seals, exports, archives, trails.

An application that only enqueues or runs jobs never imports this package. It sees `jobledger.ledger` and nothing else.
"""

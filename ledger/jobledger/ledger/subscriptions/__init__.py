"""Durable subscriptions: named readers of events whose position the server keeps.

`subscription` reads and settles, `consumers` is what the server holds of one, `filter` and `options` what a
caller says. Seen from outside they are `Ledger.subscription` and `Ledger.events(durable=...)`.
"""

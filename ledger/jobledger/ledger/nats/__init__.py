"""All that speaks to nats-server: connection, streams, consumers, appending, reading, leases, payloads.

It sees `model` and no other part of the ledger.
"""

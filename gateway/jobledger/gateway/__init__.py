"""The gateway: the ledger over HTTP, webhooks in and out, who may do what, and a dashboard."""

"""Routes, webhooks and watches as facts of the ledger, and the code that matches requests and events to them. Pure."""

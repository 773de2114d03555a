"""Keys of the gateway, as facts of the ledger: how they are made, written, and read."""

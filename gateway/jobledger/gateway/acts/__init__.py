"""Acts on many jobs: planned first, then done by a job of the ledger's own."""

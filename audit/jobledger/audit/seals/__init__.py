"""Signed seals over the ledger: made, published, read back and checked."""

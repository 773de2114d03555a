"""Commands that prove, seal, export and archive a ledger."""

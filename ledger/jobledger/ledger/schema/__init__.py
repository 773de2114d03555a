"""The ledger's events described for other languages: JSON Schema and AsyncAPI."""

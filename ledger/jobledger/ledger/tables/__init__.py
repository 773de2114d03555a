"""Tables of runs: what a step hands on as rows, kept as Parquet outside of the ledger for a time."""

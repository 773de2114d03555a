"""`jobledger demo`: real jobs, a killed worker, and what the ledger says of them."""

"""`jobledger demo`: real jobs, a killed worker, and a proof by the ledger that none was lost."""

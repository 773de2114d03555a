"""What a person can do and see in a ledger, with plain return values: terminals and pages lay them out."""

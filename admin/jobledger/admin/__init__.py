"""What a person can do and see in a ledger, with plain returns: how it looks on a terminal or a page is not told here."""

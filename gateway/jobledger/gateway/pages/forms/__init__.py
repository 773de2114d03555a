"""Acts of forms on pages that are not among the verbs shared with the HTTP API and the command line."""

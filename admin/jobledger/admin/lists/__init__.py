"""The contents of lists and figures, made once for commands, the API and pages."""

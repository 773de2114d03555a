"""What lists and figures show: one answer each, which commands, the API and pages share."""

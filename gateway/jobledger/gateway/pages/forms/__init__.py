"""Acts of the pages' forms, beside the verbs that the HTTP API and the command line share."""

"""What the forms of the pages do: the verbs that the HTTP API and the command line have, too."""

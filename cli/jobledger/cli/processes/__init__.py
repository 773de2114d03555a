"""Commands that run a server or workers, and the list of workers."""

"""One process of the gateway: its server, its limits, how it is, how it stops, and the processes that work for it."""

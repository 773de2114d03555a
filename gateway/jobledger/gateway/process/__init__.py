"""One process of the gateway: its server, its limits, its health, its stop, and the processes that work for it."""

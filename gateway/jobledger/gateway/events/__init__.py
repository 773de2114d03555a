"""Events over HTTP: one reader shared by all live clients, and one more for each client that asks for the past."""

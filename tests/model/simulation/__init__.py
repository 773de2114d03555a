"""A seeded simulation: several workers, clients and a server on a virtual clock, with faults between any two steps.

All product code is real, from `Worker` down to the bytes it puts on the wire. Replaced are the connection
(`wire`), the server (`server`, `streams`, `consumers`: JetStream's rules on a `MemoryLog`), the clocks and the
event loop (`loop`). One seed is one schedule, step for step.
"""

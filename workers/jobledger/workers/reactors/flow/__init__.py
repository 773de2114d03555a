"""The reactor of the limits: reads who waits and who holds slots, and grants."""

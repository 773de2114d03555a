"""Limits: what they are called, how they are defined, and who holds their slots. Pure."""

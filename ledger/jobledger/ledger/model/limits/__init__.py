"""Limits: their names, their definitions, and the holders of their slots. Pure."""

"""Verbs: what a person or a program can do or ask, each declared once; every door is made of the declaration."""

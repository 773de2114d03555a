"""Identification of callers, and their rights."""

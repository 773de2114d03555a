"""Permissions, and the principals that act with them."""

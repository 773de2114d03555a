"""Webhooks: what comes in from other systems, and what goes out to them."""

"""Webhooks: deliveries from other systems, and deliveries to them."""

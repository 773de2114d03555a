"""Commands on events and subscriptions."""

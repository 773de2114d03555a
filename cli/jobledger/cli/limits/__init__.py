"""Commands on limits."""

"""Commands on workflows."""

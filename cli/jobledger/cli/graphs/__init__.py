"""Commands on stored graphs."""

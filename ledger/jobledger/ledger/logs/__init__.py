"""What log lines say of where they come from."""

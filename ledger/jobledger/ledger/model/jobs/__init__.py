"""What a folded job is made of. Pure."""

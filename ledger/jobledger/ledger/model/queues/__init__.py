"""What a queue can be besides full or empty: the events of its own chain."""

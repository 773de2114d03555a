"""From a delivered work item to a recorded outcome."""

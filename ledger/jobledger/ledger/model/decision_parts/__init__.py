"""The parts of `decisions`: the facts that every command leads to, and the decisions on runs and pauses. Pure."""

"""Commands on projections and on the past that they hold."""

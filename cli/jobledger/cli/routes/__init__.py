"""Commands on routes and their deliveries."""

"""Commands on routes and what is delivered to them."""

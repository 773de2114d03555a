"""How a package gives its names without importing all that it holds."""

"""Several worker processes under one parent, which starts, watches, replaces and reloads them."""

"""The tables of each aggregate, a module or a few for each; `registry` lists them."""

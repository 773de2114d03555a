"""Workflows as a person sees them: which there are in which versions, and whether recorded runs fit the code at hand."""

"""The table of endpoints, and what is made of it: routes, checks, errors and the OpenAPI document."""

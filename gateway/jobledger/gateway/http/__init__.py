"""The table of endpoints; routes, checks, errors and the OpenAPI document are made from it."""

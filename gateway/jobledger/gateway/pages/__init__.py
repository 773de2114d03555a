"""The dashboard: pages that the gateway renders, of the same objects that the HTTP API and the command line show."""

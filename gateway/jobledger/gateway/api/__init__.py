"""The endpoints under `/v1`: functions from structures to structures, without HTTP."""

"""Secrets that a server keeps: encrypted in its store, put into requests of its tenants' code."""

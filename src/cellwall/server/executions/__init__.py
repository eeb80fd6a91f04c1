"""Executions and sandboxes from an accepted order to a durable end, apart from any connection."""

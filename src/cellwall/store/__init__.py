"""Persistence: executions, their events, sandboxes, keys, replays, audit.

Imported by `engine` and `server`; the only package that knows a database. Its inputs and outputs
are values of `store.records.rows`; it knows no HTTP and no sandbox.
"""

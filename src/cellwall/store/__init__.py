"""Persistence: executions, their events, sandboxes, keys, replays, audit.

Imported by `engine` and `server`; the only package that knows a database. It is given values of
`store.records.rows` and gives them back; it knows no HTTP and no sandbox.
"""

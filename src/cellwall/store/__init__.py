"""Persistence: sandboxes, executions, keys, quotas, audit.

Imported by `engine`; the only package that knows a database.
"""

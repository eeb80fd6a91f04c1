"""The use cases: sandboxes, contexts, executions, the warm pool, templates.

Doors (library, command line, server) call it; it calls runtimes through `runtimes.base` only.
"""

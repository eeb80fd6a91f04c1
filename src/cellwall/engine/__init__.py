"""The use cases: sandboxes, executions, the warm pool, templates, limits over time.

Imported by `apps`, `server` and the public facade; sees runtimes through their contract only.
"""

"""Engine: the use cases of sandboxes, contexts, executions, the warm pool and templates.

The interfaces (library, command line, server) call it; it calls runtimes through `runtimes.base`
only.
"""

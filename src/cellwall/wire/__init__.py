"""Shapes at the edges: the answer of an execution, its event lines, the error envelope.

For the doors (CLI, server, client) only; engine, runtimes, jail and guest must not import it.
"""

"""Wire: the shapes at the edges; an execution's answer, its event lines, the error envelope.

For the interfaces (CLI, server, client) only; engine, runtimes, jail and guest must not import it.
"""

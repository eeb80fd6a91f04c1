"""How the processes of a fork-server are started, and with what.

Nothing here imports an event loop or an engine: a process that answers once starts its fork-server
before it imports those (`head_start`).
"""

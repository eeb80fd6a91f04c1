"""HTTP: the ASGI application over one engine (design/0003-http.md).

It is neither a second engine nor the composition root (`apps.serve`): it knows owners, connections
and records of executions; for everything that happens in a sandbox it calls `engine`. It needs the
extra `cellwall[server]`.
"""

"""HTTP: the ASGI application over one engine (design/0003-http.md).

Not a second engine and not the composition root (`apps.serve`): it knows owners, connections and
records of executions; for everything that happens in a sandbox it calls `engine`. Needs the extra
`cellwall[server]`.
"""

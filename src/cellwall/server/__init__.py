"""HTTP: the ASGI application over one engine (design/0003-http.md).

Not a second engine and not the composition root (`apps.serve`): it knows owners, connections and
records of what ran; everything that happens in a sandbox is asked of `engine`. Needs the extra
`cellwall[server]`.
"""

"""HTTP and WebSocket doors: routes, authentication, streaming, errors to envelopes.

Imported by `apps` only; `client` and `server` never import each other, they meet in `wire`.
"""

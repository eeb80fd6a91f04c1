"""Outgoing requests of the server on a caller's wish: webhooks, checked by the connected address.

Imported by `engine` and `server`; knows policies, never sandboxes. The outbound proxy of sandboxes
will live here too.
"""

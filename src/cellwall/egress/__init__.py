"""What leaves our own side on a caller's wish: webhooks, decided by the connected address.

Imported by `engine` and `server`; knows policies, never sandboxes. The outbound proxy of sandboxes
will live here too.
"""

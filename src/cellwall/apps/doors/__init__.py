"""Doors: the protocols of other executors, answered by this server for their own clients."""

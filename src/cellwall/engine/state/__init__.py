"""Copies of live sandboxes: forks, and snapshots that are kept for later."""

"""Mounts of volumes: a process on the host that has them, and gives each sandbox its own view."""

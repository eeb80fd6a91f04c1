"""Containers of a Docker daemon as sandboxes: `docker`, and `docker+runsc` where it has gVisor."""

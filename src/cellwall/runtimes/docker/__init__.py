"""Docker containers as sandboxes: `docker`, and `docker+runsc` where the daemon has gVisor."""

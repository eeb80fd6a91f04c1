"""Volumes below the runtimes: their file systems, their locks, and who has them mounted."""

"""Trees of local files on their way into a sandbox and out of it, as tar archives."""

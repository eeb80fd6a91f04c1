"""Templates of a server that callers build: their calls, and the form that a context comes in."""

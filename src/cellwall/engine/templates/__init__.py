"""Templates: defined, built, found, and never run outside a sandbox."""

"""What the egress proxy needs where it opens TLS: an authority, the two ends, and secrets."""

"""Registries, packages and a broker of a test's own, over loopback."""

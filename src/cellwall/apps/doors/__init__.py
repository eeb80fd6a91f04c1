"""Doors: foreign protocols that this server answers, for clients that exist."""

"""Copies of live contexts: how one is written down, and how another process becomes it."""

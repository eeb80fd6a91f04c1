"""One module for each version; each knows the one before it."""

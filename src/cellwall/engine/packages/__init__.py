"""Packages that callers have installed into their sandboxes, before or while these run."""

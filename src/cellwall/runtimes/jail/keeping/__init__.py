"""Sandboxes that outlive their server: the keeper's client, and the record of each sandbox."""

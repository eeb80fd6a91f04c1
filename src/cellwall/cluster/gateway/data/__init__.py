"""Volumes, images and templates of tenants, which lie on nodes and are named without a node."""

"""Attacks that every wall withstands: written for the jail, run on others by `walls`."""

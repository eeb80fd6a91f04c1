"""Requests that this process makes to its own server, for a caller that it has checked before."""

"""Typed wrappers around system calls; no policy, no decisions, errno stays an errno."""

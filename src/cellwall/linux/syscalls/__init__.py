"""Typed wrappers around system calls; no policy, no decisions, errno stays an errno.

Runs wherever it is imported: in the engine process, in boot, fork-servers and sandboxes.
"""

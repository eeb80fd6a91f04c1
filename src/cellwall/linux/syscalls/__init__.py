"""Typed wrappers around system calls; no policy, no decisions, errno stays an errno.

Runs in every process that imports it: the engine, boot, fork-servers and sandboxes.
"""

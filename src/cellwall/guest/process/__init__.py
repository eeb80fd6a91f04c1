"""Processes as the kernel sees them: libc calls, /proc, ends of processes, state after a fork.

The modules run in every process inside a sandbox.
"""

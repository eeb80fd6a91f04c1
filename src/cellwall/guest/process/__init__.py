"""What this process and its relatives are to the kernel: libc calls, /proc, ends, a fresh start.

Runs in every process inside.
"""

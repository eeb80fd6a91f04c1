"""Pid 1 of a sandbox: owns the channel, reaps, keeps the records of contexts and commands.

Init never runs caller code. `context_spawn` is the one module whose last part runs in the new
context.
"""

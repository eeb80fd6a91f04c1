"""Pid 1 of a sandbox: owns the channel, reaps, keeps the books of contexts and commands.

It never runs caller code. `context_spawn` is the one module whose end runs in the new context.
"""

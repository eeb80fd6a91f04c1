"""Control groups, v1 and v2: found, made, read, removed.

Runs in the engine process only; never part of a guest bundle.
"""

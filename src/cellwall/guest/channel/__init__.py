"""Frames, and the loop that reads and writes them; both ends of what is said use it.

Runs in init and in contexts, and in the engine process for what both ends must agree on.
"""

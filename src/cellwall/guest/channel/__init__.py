"""Frames of the guest channel, and the event loop that reads and writes them.

The modules run in init and in contexts, and in the engine process for the parts on which both ends
must agree.
"""

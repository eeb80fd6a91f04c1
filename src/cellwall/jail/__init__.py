"""The part of a Linux jail that is privileged or runs before the guest, and what describes it.

Standard library only, no event loop, no logging, Python 3.8 and later, except for `inspect`. The
engine's half of the same technology is `runtimes.jail`.
"""

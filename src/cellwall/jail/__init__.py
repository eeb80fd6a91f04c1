"""What runs privileged or before the guest in a Linux jail, and what describes it.

Standard library only, no event loop, no logging, Python 3.8 and later, but for `inspect`. The
engine's half of the same technology is `runtimes.jail`.
"""

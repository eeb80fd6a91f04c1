"""Runtime `process`: a child process without isolation, for trusted code; `boot` runs in the
child.
"""

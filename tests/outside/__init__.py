"""The way out of a sandbox, and who stands there.

A package, as the tests on images run others of it once more.
"""

"""Hostile code in real sandboxes.

A package, as its `walls` import tests of the `corpus`, to run them on other runtimes.
"""

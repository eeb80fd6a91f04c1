"""Surfaces for people: the command line, the demo and the bench.

The top of the house: may import everything below, nothing imports it.
"""

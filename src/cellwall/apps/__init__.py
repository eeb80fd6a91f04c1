"""Apps: surfaces for people; the command line, the demo and the bench.

The top of the import order: it may import everything below, nothing imports it.
"""

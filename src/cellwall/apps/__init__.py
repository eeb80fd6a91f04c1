"""Apps: surfaces for people; the command line and the demo.

The top of the import order: it may import everything below, nothing imports it.
"""

"""The bench: every figure the project claims, measured on the machine at hand.

Behind `make bench`, which writes `bench/RESULTS.md`; no part of the wheel. Not a test: it judges
against bars, it does not fail. Invariant: every figure is taken beside the floor it is compared
with.
"""

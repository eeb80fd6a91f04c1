"""The bench: every figure the project claims, measured on the machine at hand.

Behind `cellwall bench` and `make bench`; writes `bench/RESULTS.md`. Not a test: it judges against
bars, it does not fail. Invariant: every figure is taken beside the floor it is compared with.
"""

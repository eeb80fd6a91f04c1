"""Model: the types that cross at least two package borders.

Every package may import this one; it imports only the standard library. A type used by one package
only lives in that package.
"""

"""Nouns that cross at least two package borders.

Everybody may import this package; it imports nothing but the standard library. A type used by
one package only lives in that package.
"""

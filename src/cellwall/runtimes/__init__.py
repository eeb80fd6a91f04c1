"""Isolation technologies behind one contract (`base`); adapters are mutually unaware.

Kept empty on purpose: `registry` maps names to modules and imports them on use.
"""

"""The process that runs caller code in Python: one program, or one notebook's cells.

All modules here share memory with caller code; nothing that they report is evidence.
"""

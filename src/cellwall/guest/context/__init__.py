"""The process that runs caller code in Python: one program, or one notebook's cells.

Everything here shares its memory with caller code; nothing that it says is evidence.
"""

"""Attempts: running one piece of code in a sandbox, with its deadlines, records and verdict."""

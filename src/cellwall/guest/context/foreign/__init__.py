"""A context for another language: an interpreter's process beside it, and what is said to that."""

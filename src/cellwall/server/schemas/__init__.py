"""What callers may send and what they get, as closed models."""

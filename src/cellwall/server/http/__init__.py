"""Steps that a request passes before its handler, and the table of endpoints."""

"""The chained audit records: written, checked, anchored, kept for as long as they must be."""

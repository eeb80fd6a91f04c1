"""Rows that are kept, the changes to them, and the SQL that every database shares."""

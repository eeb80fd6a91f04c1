"""What is kept and what can be done to it; the SQL that every database shares."""

"""What a program shows: results, charts, tables, tracebacks, bounded; runs in a context."""

"""Results, charts, tables and tracebacks of a program, bounded; the modules run in a context."""

"""Images for tests, made of this machine's own files."""

"""Events and bytes on their way to a client, numbered, bounded, resumable."""

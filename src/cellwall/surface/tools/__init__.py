"""Functions of the host that caller code may call: their schemas, stubs and calls."""

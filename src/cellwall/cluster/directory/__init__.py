"""The directory: what several gateways agree on, in a schema of its own of a PostgreSQL server."""

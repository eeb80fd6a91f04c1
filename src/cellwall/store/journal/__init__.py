"""A log in front of SQLite: accepted work is durable there before the database has it."""

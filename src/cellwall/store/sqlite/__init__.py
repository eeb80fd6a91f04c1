"""The store in one SQLite file, and what notices when that file is lost or replaced."""

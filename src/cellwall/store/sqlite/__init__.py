"""The store in one SQLite file, and the guard that notices when that file is lost or replaced."""

"""The door itself: what meets a request before its handler, and the table of endpoints."""

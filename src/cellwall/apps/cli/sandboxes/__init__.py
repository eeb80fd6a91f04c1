"""`cellwall sandbox …`: sandboxes of a server, listed, entered, copied to and from, ended."""

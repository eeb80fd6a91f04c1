"""The commands of a cluster."""

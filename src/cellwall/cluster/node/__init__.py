"""What a server is besides, where it is a node of a cluster."""

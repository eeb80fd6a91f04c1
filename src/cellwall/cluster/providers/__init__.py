"""Where a gateway's nodes are: what says which addresses there are now, and when they change."""

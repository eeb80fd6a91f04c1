"""A cluster of Ray's on this machine, for the suite of fleets; imported in its environment only."""

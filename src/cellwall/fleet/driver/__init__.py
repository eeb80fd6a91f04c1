"""Driver: the caller's side of a fleet; which node does what, and what is known of each."""

"""Ways out of a network namespace: routes, packet rules and listeners that the host puts there."""

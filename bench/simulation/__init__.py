"""A cluster of ten thousand nodes, simulated around the gateway's real choosing code.

What is real: `cluster.gateway.book`, one for each gateway, and how often a gateway tries. What is
not: nodes are cores and places that are counted, the network is a time, and SimPy is the clock.
`parameters` has what things cost, as the bench has measured it; `waiting` simulates programs,
`filling` sandboxes that live; `report` writes `bench/SIMULATION.md`.
"""

"""Which work goes where and when: turns of tenants, slow nodes, what an operator asks of nodes."""

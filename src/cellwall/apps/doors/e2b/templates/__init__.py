"""Templates of a tenant as E2B's clients name them, and what is kept with each."""

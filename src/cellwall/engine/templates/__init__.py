"""Templates: their definitions, builds and places; a template never runs outside a sandbox."""

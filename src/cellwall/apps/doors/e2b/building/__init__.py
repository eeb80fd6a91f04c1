"""Building of templates: what E2B's clients describe becomes builds of this server."""

"""Names inside a sandbox: DNS answers made here, made-up addresses, the host's own look-ups."""

"""Keys, tokens, and the one function that checks which tenant owns an object."""

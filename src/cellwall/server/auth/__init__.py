"""Keys, tokens, and the one function that says whose a thing is."""

"""A whole program from request to answer: checked, compiled, run, its files collected."""

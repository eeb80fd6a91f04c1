"""What this host allows, and what a sandbox really got: read, tried, compared.

Runs in the engine process; what is tried is tried in child processes that end with the trial.
"""

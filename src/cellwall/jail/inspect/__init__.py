"""What this host allows, and what a sandbox really got: read, tried, compared.

Runs in the engine process; trials run in child processes that end with the trial.
"""

"""What makes starts fast and nothing else; runs in the fork-server and its workers.

Nothing outside depends on it for correctness. README.md says of each what it is worth.
"""

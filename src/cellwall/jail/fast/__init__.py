"""Code that only makes starts faster; runs in the fork-server and its workers.

No other package depends on it for correctness. README.md says what each module gains.
"""

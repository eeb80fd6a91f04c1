"""The outbound proxy: what a sandbox may reach, decided by connected address, and its log.

Imported by `engine` and `runtimes`; knows policies, never sandboxes.
"""

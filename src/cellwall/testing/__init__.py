"""The public test kit: the contract every runtime passes, and fixtures for other people's tests.

Imported by tests, ours and theirs; nothing of the product imports it.
"""

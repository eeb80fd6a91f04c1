"""The public test kit: the contract every runtime passes, for third parties too.

Imported by tests, ours and theirs; nothing of the product imports it.
"""

"""Test kit, public: the contract that every runtime passes, and fixtures for users' tests.

Imported by cellwall's tests and by those of its users; nothing of the product imports it.
"""

"""The SDK over HTTP: the nouns of the library, with few dependencies.

Imported by users and `apps`; must never pull in the engine, a runtime or the jail.
"""

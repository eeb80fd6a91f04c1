"""One small declarative entry per language; `registry` finds them.

Imported by `engine` and `apps`. Adding a language is adding a module here and a line there.
"""

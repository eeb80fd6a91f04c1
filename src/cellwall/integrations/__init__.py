"""cellwall from inside the frameworks that agents, evaluations and tests are written with.

One thin module for each, imported by the program that wants it and by nothing else; each says
which extra brings its framework. What they share: `calls` reads what a model asked for, `answers`
is what it is told, `code_tool` keeps one sandbox for a conversation. They use what every user of
the library has, so a sandbox may be embedded or a server's.
"""

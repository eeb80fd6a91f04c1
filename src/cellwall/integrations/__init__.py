"""Integrations: cellwall in the frameworks for agents, evaluations and tests.

One thin module for each framework, a package where the framework has several interfaces, imported
only by the program that uses it; each names the extra that installs its framework. Shared modules:
`calls` parses a model's request, `answers` makes the reply, `commands` says how a command ended,
`code_tool` keeps one sandbox for a conversation. They use the public library, so a sandbox may be
embedded or a server's.
"""

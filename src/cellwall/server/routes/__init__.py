"""The handlers, one module per noun; each ends with its part of the table of routes.

A handler reads a checked body, calls the engine or a registry, and answers. Errors are raised. It
reaches a sandbox, execution or command only through `endpoint.sandbox` and its like.
"""

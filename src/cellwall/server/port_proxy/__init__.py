"""Requests from outside to a server inside a sandbox: lists of headers, HTTP, WebSockets."""

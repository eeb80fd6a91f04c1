"""The two ways to the tools: a process of its own on stdin and stdout, and `/mcp` of a server."""

"""What the server's tests share: servers that fail or count, clients of MCP, proxies in front."""

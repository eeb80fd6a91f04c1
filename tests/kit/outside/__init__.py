"""The outside of a sandbox in tests: name servers, web servers and sinks, all on loopback."""

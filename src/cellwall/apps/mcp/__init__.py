"""The Model Context Protocol: what a model can do with sandboxes, as tools of its client.

`tools` is what the tools do, over the library's own nouns (`library`); `catalog` says which there
are, `arguments` what they take, `answers` what comes back, `resources` is files by address;
`protocol` puts that behind the official SDK. Two doors: `stdio`, an embedded engine for one client
(`cellwall mcp`), and `http`, `/mcp` of a server. A surface like the command line.
"""

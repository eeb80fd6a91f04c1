"""Model Context Protocol: what a model can do with sandboxes, as tools of its client.

`tools` implements the tools on the library's own objects (`library`); `catalog` lists them,
`arguments` has their input, `answers` their output, `resources` the files by address; `protocol`
connects that to the official SDK. There are two interfaces: `stdio`, an embedded engine for one
client (`cellwall mcp`), and `http`, `/mcp` of a server.
"""

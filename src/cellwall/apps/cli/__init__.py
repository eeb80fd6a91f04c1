"""The `cellwall` command: one small module per subcommand, put together by `main`."""

"""The suites of other people's SDKs, run unmodified against a server of this clone."""

"""Programs: one whole program from request to answer; check, compile, run, collect files."""

"""Policy: what is allowed and what is the default; settings, isolation levels, runtime choice."""

"""What is allowed and what is usual: settings, isolation levels, the choice of a runtime."""

"""What makes each wall one: the corpus on other runtimes, and guards that are dropped."""

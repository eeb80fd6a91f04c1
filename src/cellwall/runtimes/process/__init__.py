"""Runtime `process`: a child process without isolation, for trusted code; the child runs `boot`."""

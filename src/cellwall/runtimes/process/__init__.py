"""Runtime `process`: a child process and no wall, for trusted code; `boot` runs in the child."""

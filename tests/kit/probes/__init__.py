"""Programs that try what a sandbox must not allow; sent into it, and to the controls beside it."""

"""One attempt to run something in a sandbox: deadlines, what was recorded, the verdict."""

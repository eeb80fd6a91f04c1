"""The door for clients of E2B: its control plane, the daemon and the interpreter of sandboxes."""

"""The control plane of E2B: sandboxes, their networks and copies, templates."""

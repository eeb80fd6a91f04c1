"""Foreign protocols at a gateway."""

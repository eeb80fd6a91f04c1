"""What gateways keep for tenants in the directory: keys of callers, and secrets, sealed."""

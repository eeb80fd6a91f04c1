"""Programs in the background, which gateways keep, and the webhooks that tell of their ends."""

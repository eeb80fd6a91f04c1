"""What an earlier server left: executions, sandboxes that have ended, sandboxes that live on."""

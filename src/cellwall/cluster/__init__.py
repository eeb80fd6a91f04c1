"""Many machines: nodes that are whole servers, and gateways in front of them."""

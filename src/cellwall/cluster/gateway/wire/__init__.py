"""HTTP on both sides of a gateway: heads, connections, and what is passed between them."""

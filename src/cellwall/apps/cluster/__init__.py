"""The processes of a cluster, composed: nodes, gateways, and what is told about them."""

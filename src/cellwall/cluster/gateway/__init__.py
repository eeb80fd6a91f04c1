"""The gateway process: finds the node of every request, and passes its bytes."""

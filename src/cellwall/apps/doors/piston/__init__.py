"""Piston: `POST /api/v2/execute`, runtimes, packages, and programs over a WebSocket."""

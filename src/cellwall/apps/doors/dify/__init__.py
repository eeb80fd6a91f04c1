"""Dify's sandbox service: `POST /v1/sandbox/run` for the code and template nodes of workflows."""

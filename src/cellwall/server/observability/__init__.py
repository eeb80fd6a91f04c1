"""Logs, metrics, traces, alert rules; and what keeps secrets out of them."""

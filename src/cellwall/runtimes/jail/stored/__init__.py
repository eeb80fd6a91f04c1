"""Lineages that outlive their fork-server: what was stored of one, made again in another engine."""

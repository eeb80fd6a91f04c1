"""Scheduling: the pool, the queue, quotas and admission decide what runs when and with how much."""

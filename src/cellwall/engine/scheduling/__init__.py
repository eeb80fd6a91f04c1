"""Who runs when, and with how much: the pool, the queue, quotas, admission."""

"""What the commands have in common: streams, tables, messages, exit statuses, servers."""

"""What every request has: settings, the call itself, its body, errors, its client's connection."""

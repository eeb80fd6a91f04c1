"""What every request has: settings, itself, its body, errors, its caller's connection."""

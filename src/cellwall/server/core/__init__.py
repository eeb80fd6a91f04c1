"""What every request has: settings, the request object, its body, errors, its connection."""

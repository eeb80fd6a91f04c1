"""What library and SDK both need apart from their faces: tasks, callbacks, forwarded ports."""

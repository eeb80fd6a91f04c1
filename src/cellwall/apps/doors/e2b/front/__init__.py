"""The front of the door: its callers, what goes to servers inside, and all planes on one origin."""

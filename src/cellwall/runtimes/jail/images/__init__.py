"""Images as roots of sandboxes: unpacked, and mounted with the ids of each."""

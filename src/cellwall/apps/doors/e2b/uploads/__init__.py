"""Files that clients upload for builds: where they go, and how long they stay."""

"""What engine and fork-server say to each other: messages with descriptors, and environments."""

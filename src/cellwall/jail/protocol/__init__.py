"""Protocol between engine and fork-server: messages with descriptors, and environments."""

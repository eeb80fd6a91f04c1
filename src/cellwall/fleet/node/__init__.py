"""Node: what runs in the actor's process on each machine: an engine, its work, and the fence."""

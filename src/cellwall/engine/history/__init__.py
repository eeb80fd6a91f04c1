"""History of a sandbox's work area: checkpoints kept by the engine, compared and restored."""

"""Code that more than one runtime uses; runs in the engine process."""

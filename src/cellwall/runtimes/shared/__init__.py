"""What more than one runtime needs; runs in the engine process."""

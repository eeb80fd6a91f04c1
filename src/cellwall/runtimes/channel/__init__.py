"""The engine process's end of the guest channel: check frames, grant streams, meter the time."""

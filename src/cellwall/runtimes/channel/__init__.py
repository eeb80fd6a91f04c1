"""The engine process's end of the guest channel: frames checked, streams granted, time metered."""

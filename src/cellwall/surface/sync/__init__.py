"""The synchronous face of asynchronous objects, over one event loop on a background thread."""

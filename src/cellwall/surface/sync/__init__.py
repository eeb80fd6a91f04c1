"""The synchronous face of asynchronous objects, over one loop on a background thread."""

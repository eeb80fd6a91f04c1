"""A context for another language: its interpreter process, and the protocol with it."""

"""Counterparts of the guest: its channel, a host for its init, and a fork-server without a jail."""

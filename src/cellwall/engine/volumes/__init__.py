"""Volumes of this machine: made, listed, copied and removed, in the state directory."""

"""Copies of whole gVisor sandboxes: the kernel inside writes itself down, see design/0043."""

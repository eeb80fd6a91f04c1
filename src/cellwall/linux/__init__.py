"""Typed access to the host's kernel, for every runtime, whatever its isolation.

`syscalls` and `seccomp` travel into sandboxes with the guest bundle (standard library only, Python
3.8 and later); `cgroups` and the ids of the host are used only in the engine process. It holds no
policy of one technology: each runtime decides what a sandbox may do.
"""

"""The host's kernel, typed: what every runtime may use, whatever isolates.

`syscalls` and `seccomp` travel into sandboxes with the guest bundle (standard library only, Python
3.8 and later); `cgroups` and the ids of the host are the engine process's own. No policy of one
technology: what a sandbox may do is decided by its runtime.
"""

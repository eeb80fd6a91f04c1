"""Builds and runs a Linux jail (DESIGN.md §5): plan, apply, lock down, read back.

`boot`, `forkserver`, `inside`, `plan`, `steps` and `linux` run next to hostile code: standard
library only, no event loop, no logging, Python >= 3.8. `supervisor`, `cgroups`, `posture` and
`probe` are the host's half. Imported by `runtimes.jail` and the command line's `doctor`.
"""

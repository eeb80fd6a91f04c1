"""The processes of a jail in the order of their starts: boot, fork-server, a sandbox's init.

`boot` has the rights of the engine's user. The fork-server is root of a user namespace of its own.
`sandbox_init` ends locked down, and only then calls the guest's init.
"""

"""The plan of a jail, and the code that carries it out.

`plan` decides as pure data, `steps` and `executor` do it, `lockdown` takes rights away. The plan is
computed in the engine process; it is executed in boot and in each new sandbox.
"""

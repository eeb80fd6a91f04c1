"""The egress proxy: the one process by which sandboxes reach the outside.

It is a process of its own without privileges, started by the engine (`proxy_process`), which
hands it the listeners of each sandbox. `main` is the process; the other modules run in it.
"""

"""gVisor sandboxes: `runsc` with an OCI bundle, and a keeper process for each.

The engine process's half, but for `keeper`, `work_area` (the keeper), `boot` and `module_finder`
(inside), and `snapshot` (a template's interpreter, in a sandbox).
"""
